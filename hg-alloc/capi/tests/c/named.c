/* A named arena is found by unrelated processes at the same addresses, with what others left in it; names and files that are
 * not as they should be are refused. Runs itself as the other process. Needs HG_RUNTIME_DIR, an empty folder. */
#include "check.h"

#include <fcntl.h>
#include <sys/stat.h>

struct root {
    char *list[100];
    char words[64];
};

static hg_arena *opened(const char *name) {
    hg_arena *arena = NULL;
    hg_status status = hg_arena_open(name, &arena);
    if (status != HG_STATUS_OK) fprintf(stderr, "%s: %s (errno %d)\n", name, hg_status_text(status), errno);
    CHECK(status == HG_STATUS_OK && arena);
    return arena;
}

static hg_status opening(const char *name) {
    hg_arena *arena = (hg_arena *)&arena;
    hg_status status = hg_arena_open(name, &arena);
    CHECK((status == HG_STATUS_OK) == (arena != NULL));
    return status;
}

static void other(const char *self, const char *what, const char *where) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        execl(self, self, what, where, (char *)NULL);
        _exit(127);
    }
    ended_well(child);
}

/* In another process: frees half of what it finds, and leaves a word. */
static int use(const char *where) {
    hg_arena *arena = opened("shop-1");
    CHECK(opened("shop-1") == arena);
    struct root *root = NULL;
    CHECK(sscanf(where, "%p", (void **)&root) == 1 && hg_owns(arena, root));
    for (int i = 0; i < 100; i++) {
        check_stamp(root->list[i], 300, (uint64_t)i);
        if (i % 2) {
            hg_free(arena, root->list[i]);
            root->list[i] = NULL;
        }
    }
    CHECK(hg_set_role(arena, "the other one") == HG_STATUS_OK);
    for (int i = 0; i < rounds(10000); i++) hg_free(arena, hg_malloc(arena, (size_t)(i % 3000)));
    strcpy(root->words, "from the other process");
    return 0;
}

/* In a process that has something at the arena's place. */
static int collide(const char *where) {
    void *place = NULL;
    CHECK(sscanf(where, "%p", &place) == 1);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    CHECK(mmap(place, 1 << 20, PROT_READ, flags, -1, 0) == place);
    CHECK(opening("shop-1") == HG_STATUS_ADDRESS_TAKEN);
    CHECK(munmap(place, 1 << 20) == 0 && opening("shop-1") == HG_STATUS_OK);
    return 0;
}

static void names(const char *folder) {
    const char *const bad[] = {"", ".", "..", ".hidden", "a/b", "/a", "a b", "a\nb", "\xc3\xa4", "0123456789012345678901234567890123"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK(opening(bad[i]) == HG_STATUS_NAME && hg_arena_unlink(bad[i]) == HG_STATUS_NAME);
    }
    CHECK(opening("nobody") == HG_STATUS_ABSENT && hg_arena_unlink("nobody") == HG_STATUS_ABSENT);

    char path[512];
    snprintf(path, sizeof path, "%s/link.hg.stats", folder);
    CHECK(symlink("shop-1.hg.stats", path) == 0);
    CHECK(opening("link") == HG_STATUS_UNSAFE && unlink(path) == 0);

    snprintf(path, sizeof path, "%s/file.hg.stats", folder);
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
    CHECK(fd >= 0 && opening("file") == HG_STATUS_NOT_AN_ARENA);
    CHECK(ftruncate(fd, 64 << 20) == 0 && opening("file") == HG_STATUS_NOT_AN_ARENA);
    CHECK(fchmod(fd, 0666) == 0 && opening("file") == HG_STATUS_UNSAFE);
    CHECK(unlink(path) == 0 && mkfifo(path, 0600) == 0 && opening("file") == HG_STATUS_UNSAFE && unlink(path) == 0);
    close(fd);

    /* An arena that somebody cut short is none any more. */
    snprintf(path, sizeof path, "%s/short.hg.stats", folder);
    hg_arena *arena = make(HG_KIND_NAMED, "short");
    int kept_open = -1;
    CHECK(hg_arena_fd(arena, &kept_open) == HG_STATUS_OK);
    char copy[512];
    snprintf(copy, sizeof copy, "%s/copy.hg.stats", folder);
    int to = open(copy, O_RDWR | O_CREAT | O_EXCL, 0600);
    static char page[1 << 16];
    struct stat stat;
    CHECK(to >= 0 && fstat(kept_open, &stat) == 0);
    for (off_t at = 0; at < 8 << 20; at += (off_t)sizeof page) {
        CHECK(pread(kept_open, page, sizeof page, at) == (ssize_t)sizeof page);
        CHECK(pwrite(to, page, sizeof page, at) == (ssize_t)sizeof page);
    }
    CHECK(opening("copy") == HG_STATUS_NOT_AN_ARENA);
    /* With all of its length it would be one, at the place of the first. */
    CHECK(ftruncate(to, stat.st_size) == 0 && opening("copy") == HG_STATUS_ADDRESS_TAKEN);
    CHECK(unlink(copy) == 0 && close(to) == 0 && close(kept_open) == 0 && hg_arena_unlink("short") == HG_STATUS_OK);

    CHECK(chmod(folder, 0755) == 0 && opening("shop-1") == HG_STATUS_UNSAFE);
    CHECK(chmod(folder, 0700) == 0);
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "use") == 0) return use(argv[2]);
    if (argc == 3 && strcmp(argv[1], "collide") == 0) return collide(argv[2]);
    const char *folder = getenv("HG_RUNTIME_DIR");
    CHECK(folder);

    hg_arena *arena = make(HG_KIND_NAMED, "shop-1");
    hg_options options;
    hg_arena *second = NULL;
    CHECK(hg_options_init(&options, sizeof options) == HG_STATUS_OK);
    options.kind = HG_KIND_NAMED, options.name = "shop-1", options.size = "8m";
    CHECK(hg_arena_create(&options, &second) == HG_STATUS_EXISTS && second == NULL);
    options.name = NULL;
    CHECK(hg_arena_create(&options, &second) == HG_STATUS_NAME);
    options.name = "not/this";
    CHECK(hg_arena_create(&options, &second) == HG_STATUS_NAME);

    struct root *root = (struct root *)hg_calloc(arena, 1, sizeof *root);
    CHECK(root);
    for (int i = 0; i < 100; i++) {
        root->list[i] = (char *)hg_malloc(arena, 300);
        CHECK(root->list[i]);
        stamp(root->list[i], 300, (uint64_t)i);
    }
    char where[32];
    snprintf(where, sizeof where, "%p", (void *)root);
    other(argv[0], "use", where);
    CHECK(strcmp(root->words, "from the other process") == 0);
    for (int i = 0; i < 100; i++) {
        CHECK((root->list[i] == NULL) == (i % 2 == 1));
        hg_free(arena, root->list[i]);
    }
    void *first;
    CHECK(hg_extent(arena, &first, NULL) == HG_STATUS_OK);
    snprintf(where, sizeof where, "%p", first);
    other(argv[0], "collide", where);
    names(folder);

    hg_free(arena, root);
    CHECK(hg_recover(arena, NULL) == HG_STATUS_OK);
    hg_trim(arena);
    hg_stats stats = stats_of(arena);
    CHECK(stats.live_bytes == 0 && stats.corruptions == 0);
    CHECK(hg_arena_unlink("shop-1") == HG_STATUS_OK && opening("shop-1") == HG_STATUS_ABSENT);
    CHECK(hg_malloc(arena, 100));
    int fd;
    CHECK(hg_arena_fd(arena, &fd) == HG_STATUS_ABSENT);
    make(HG_KIND_NAMED, "shop-1");
    CHECK(hg_arena_fd(arena, &fd) == HG_STATUS_ABSENT && hg_arena_unlink("shop-1") == HG_STATUS_OK);
    kept();
    return 0;
}
