/* A child's copy of a private arena takes frees, and the parent sees nothing of it. It grows only if it was made to. */
#include "check.h"

/* How many MiB can be had. */
static int room(hg_arena *arena) {
    int mib = 0;
    while (hg_malloc(arena, 1 << 20)) mib++;
    return mib;
}

int main(void) {
    hg_arena *arena = make(HG_KIND_PRIVATE, "private");
    hg_options options;
    hg_arena *growing = NULL;
    CHECK(hg_options_init(&options, sizeof options) == HG_STATUS_OK);
    options.size = "8m:64m", options.flags = HG_FLAG_GROWS_INHERITED;
    CHECK(hg_arena_create(&options, &growing) == HG_STATUS_OK && hg_malloc(growing, 100));
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
        int left = room(arena), more = room(growing);
        CHECK(left >= 4 && left <= 8 && more >= 56 && more <= 64);
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
