/* The file system of a named arena is full: allocations fail and say so, nobody is killed, and growth goes on once there is room.
 * Needs HG_RUNTIME_DIR on a file system of 24 MiB. */
#include "check.h"

#include <fcntl.h>

static int blocked, unblocked;

static void grow_blocked(void *context, hg_arena *arena, const hg_grow_blocked *event) {
    CHECK(context == &blocked && arena && event->committed_bytes > 0);
    if (event->on) CHECK(strcmp(hg_cause_label(event->cause), "file system full") == 0);
    *(event->on ? &blocked : &unblocked) += 1;
    hg_free(arena, hg_malloc(arena, 100));
}

int main(void) {
    hg_callbacks callbacks;
    memset(&callbacks, 0, sizeof callbacks);
    callbacks.struct_size = sizeof callbacks;
    callbacks.context = &blocked;
    callbacks.grow_blocked = grow_blocked;
    CHECK(hg_set_callbacks(&callbacks) == HG_STATUS_OK);

    char ballast[512];
    snprintf(ballast, sizeof ballast, "%s/ballast", getenv("HG_RUNTIME_DIR"));
    int fd = open(ballast, O_RDWR | O_CREAT, 0600);
    CHECK(fd >= 0 && posix_fallocate(fd, 0, 8 << 20) == 0);

    hg_arena *arena = make(HG_KIND_NAMED, "full");
    static void *blocks[1 << 20];
    size_t count = 0, sum = 0;
    /* Small blocks too, whose states take room of their own. */
    for (size_t size = 16; count < sizeof blocks / sizeof *blocks; size = size < 4096 ? size + 16 : 16) {
        void *block = hg_malloc(arena, size);
        if (!block) break;
        memset(block, 1, size);
        blocks[count++] = block;
        sum += size;
    }
    CHECK(errno == ENOMEM && sum > 6 << 20 && sum < 16 << 20);
    hg_stats stats = stats_of(arena);
    CHECK(blocked == 1 && stats.grow_blocked == 1 && strcmp(hg_cause_label(stats.blocked_cause), "file system full") == 0);
    CHECK(stats.grows_refused > 0 && stats.allocs_failed > 0);

    CHECK(close(fd) == 0 && unlink(ballast) == 0);
    /* A refusal stands for a moment before the limits are looked at again. */
    void *block = NULL;
    for (int i = 0; i < 100 && !block; i++) {
        usleep(20000);
        block = hg_malloc(arena, 2 << 20);
    }
    CHECK(block && unblocked == 1 && stats_of(arena).grow_blocked == 0);
    memset(block, 1, 2 << 20);
    hg_free(arena, block);
    hg_free_many(arena, blocks, count);
    hg_trim(arena);
    CHECK(hg_live_bytes(arena) == 0 && hg_arena_unlink("full") == HG_STATUS_OK);
    kept();
    return 0;
}
