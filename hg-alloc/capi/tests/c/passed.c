/* A shared arena goes to an unrelated process by a descriptor over a socket. Runs itself as the other process. */
#include "check.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>

union control {
    struct cmsghdr header;
    char bytes[CMSG_SPACE(sizeof(int))];
};

static void send_fd(int socket, int fd, void *block) {
    struct iovec data = {&block, sizeof block};
    union control control;
    memset(&control, 0, sizeof control);
    struct msghdr message;
    memset(&message, 0, sizeof message);
    message.msg_iov = &data, message.msg_iovlen = 1;
    message.msg_control = control.bytes, message.msg_controllen = sizeof control.bytes;
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS, header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    CHECK(sendmsg(socket, &message, 0) == (ssize_t)sizeof block);
}

static int receive_fd(int socket, void **block) {
    struct iovec data = {block, sizeof *block};
    union control control;
    struct msghdr message;
    memset(&message, 0, sizeof message);
    message.msg_iov = &data, message.msg_iovlen = 1;
    message.msg_control = control.bytes, message.msg_controllen = sizeof control.bytes;
    CHECK(recvmsg(socket, &message, MSG_CMSG_CLOEXEC) == (ssize_t)sizeof *block);
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    CHECK(header && header->cmsg_type == SCM_RIGHTS);
    int fd;
    memcpy(&fd, CMSG_DATA(header), sizeof fd);
    return fd;
}

static int receiver(int socket) {
    void *block;
    int fd = receive_fd(socket, &block);
    hg_arena *arena = NULL;
    hg_status status = hg_arena_open_fd(fd, &arena);
    if (status != HG_STATUS_OK) fprintf(stderr, "%s (errno %d)\n", hg_status_text(status), errno);
    CHECK(status == HG_STATUS_OK && hg_owns(arena, block));
    hg_arena *again = NULL;
    CHECK(hg_arena_open_fd(fd, &again) == HG_STATUS_OK && again == arena);
    close(fd);
    check_stamp(block, 1000, 42);
    hg_free(arena, block);
    block = hg_malloc(arena, 2000);
    CHECK(block);
    stamp(block, 2000, 43);
    CHECK(write(socket, &block, sizeof block) == (ssize_t)sizeof block);
    return 0;
}

static hg_status opening(int fd) {
    hg_arena *arena = NULL;
    hg_status status = hg_arena_open_fd(fd, &arena);
    CHECK((status == HG_STATUS_OK) == (arena != NULL));
    return status;
}

int main(int argc, char **argv) {
    if (argc == 2) return receiver(atoi(argv[1]));
    hg_options options;
    hg_arena *arena = NULL;
    CHECK(hg_options_init(&options, sizeof options) == HG_STATUS_OK);
    options.kind = HG_KIND_SHARED, options.flags = HG_FLAG_PASS, options.size = "4m:64m";
    CHECK(hg_arena_create(&options, &arena) == HG_STATUS_OK);
    int fd = -1;
    CHECK(hg_arena_fd(arena, &fd) == HG_STATUS_OK && (fcntl(fd, F_GETFD) & FD_CLOEXEC));
    /* Nobody can cut it short under the others. */
    CHECK(ftruncate(fd, 4096) == -1 && ftruncate(fd, (off_t)1 << 40) == -1);

    void *block = hg_malloc(arena, 1000);
    CHECK(block);
    stamp(block, 1000, 42);
    int pair[2];
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        char number[16];
        snprintf(number, sizeof number, "%d", pair[1]);
        execl(argv[0], argv[0], number, (char *)NULL);
        _exit(127);
    }
    send_fd(pair[0], fd, block);
    CHECK(read(pair[0], &block, sizeof block) == (ssize_t)sizeof block);
    ended_well(child);
    check_stamp(block, 2000, 43);
    hg_free(arena, block);
    CHECK(hg_recover(arena, NULL) == HG_STATUS_OK);
    hg_trim(arena);
    CHECK(hg_live_bytes(arena) == 0 && stats_of(arena).corruptions == 0);

    /* What is no arena, and what cannot be written. */
    int other = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    CHECK(other >= 0 && opening(other) == HG_STATUS_NOT_AN_ARENA && close(other) == 0);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int reader = open(path, O_RDONLY | O_CLOEXEC);
    CHECK(reader >= 0 && opening(reader) == HG_STATUS_NOT_AN_ARENA && close(reader) == 0);

    /* A daemon closes all descriptors, and uses their numbers for something else. */
    for (int number = 3; number < 64; number++) {
        if (dup2(0, number) != number) CHECK(0);
    }
    CHECK(hg_arena_fd(arena, &fd) == HG_STATUS_ABSENT);
    CHECK(hg_arena_fd(make(HG_KIND_SHARED, "not to be passed"), &fd) == HG_STATUS_KIND);
    CHECK(hg_arena_fd(make(HG_KIND_PRIVATE, "private"), &fd) == HG_STATUS_KIND);
    CHECK(hg_malloc(arena, 100));
    kept();
    return 0;
}
