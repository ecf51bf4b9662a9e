/* An arena in memory that the caller mapped: all blocks lie in it, and children share them. */
#include "check.h"

int main(void) {
    const size_t bytes = (64 << 20) + 4096;
    int flags = MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE;
    char *memory = (char *)mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    CHECK(memory != MAP_FAILED);
    hg_options options;
    hg_arena *arena = NULL;
    CHECK(hg_options_init(&options, sizeof options) == HG_STATUS_OK);
    options.kind = HG_KIND_SHARED;
    options.size = "4m:64m";
    options.memory = memory;
    options.memory_bytes = 1 << 20;
    CHECK(hg_arena_create(&options, &arena) == HG_STATUS_ARGUMENT);
    options.memory_bytes = bytes;
    options.kind = HG_KIND_NAMED, options.name = "x";
    CHECK(hg_arena_create(&options, &arena) == HG_STATUS_KIND);
    options.kind = HG_KIND_SHARED;
    CHECK(hg_arena_create(&options, &arena) == HG_STATUS_OK);

    void *first;
    size_t extent;
    CHECK(hg_extent(arena, &first, &extent) == HG_STATUS_OK);
    CHECK((char *)first >= memory && (char *)first + extent <= memory + bytes && extent >= 60 << 20);
    static char *blocks[10000];
    size_t count = 0;
    while (count < 10000 && (blocks[count] = (char *)hg_malloc(arena, 5000))) {
        CHECK(blocks[count] >= memory && blocks[count] + 5000 <= memory + bytes);
        stamp(blocks[count], 5000, count);
        count++;
    }
    CHECK(count == 10000);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        for (size_t i = 0; i < count; i++) {
            check_stamp(blocks[i], 5000, i);
            hg_free(arena, blocks[i]);
        }
        _exit(0);
    }
    ended_well(child);
    CHECK(hg_recover(arena, NULL) == HG_STATUS_OK);
    hg_trim(arena);
    CHECK(hg_live_bytes(arena) == 0 && stats_of(arena).corruptions == 0);
    kept();
    return 0;
}
