/* A child's copy of a private arena takes frees, and the parent sees nothing of it. */
#include "check.h"

int main(void) {
    hg_arena *arena = make(HG_KIND_PRIVATE, "private");
    char *blocks[1000];
    for (int i = 0; i < 1000; i++) {
        blocks[i] = (char *)hg_malloc(arena, 200);
        CHECK(blocks[i]);
        stamp(blocks[i], 200, (uint64_t)i);
    }
    uint64_t live = hg_live_bytes(arena);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        for (int i = 0; i < 1000; i++) {
            check_stamp(blocks[i], 200, (uint64_t)i);
            hg_free(arena, blocks[i]);
        }
        void *block = hg_malloc(arena, 200);
        CHECK(block && stats_of(arena).corruptions == 0);
        memset(block, 0, 200);
        hg_arena *own = make(HG_KIND_PRIVATE, "the child's own");
        CHECK(hg_malloc(own, 64 << 20));
        _exit(0);
    }
    ended_well(child);
    CHECK(hg_live_bytes(arena) == live);
    for (int i = 0; i < 1000; i++) {
        check_stamp(blocks[i], 200, (uint64_t)i);
        hg_free(arena, blocks[i]);
    }
    hg_trim(arena);
    CHECK(hg_live_bytes(arena) == 0 && stats_of(arena).corruptions == 0);
    kept();
    return 0;
}
