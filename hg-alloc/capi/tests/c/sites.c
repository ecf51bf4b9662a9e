/* Allocations that tell where they are made are as good as the others. */
#include "check.h"

int main(void) {
    hg_arena *arena = make(HG_KIND_SHARED, "sites");
    for (int i = 0; i < rounds(20000); i++) {
        size_t size = (size_t)(i * 37 % 5000);
        unsigned char *block = (unsigned char *)HG_MALLOC(arena, size);
        CHECK(block);
        stamp(block, size, 1);
        block = (unsigned char *)HG_REALLOC(arena, block, size + 100);
        CHECK(block);
        check_stamp(block, size, 1);
        memset(block, 0xff, size + 100);
        HG_FREE(arena, block);
        unsigned char *zero = (unsigned char *)HG_CALLOC(arena, size, 1);
        CHECK(zero);
        for (size_t at = 0; at < size; at++) CHECK(zero[at] == 0);
        void *aligned = HG_ALIGNED_ALLOC(arena, 256, size + 1);
        CHECK(aligned && (uintptr_t)aligned % 256 == 0);
        void *fresh = HG_REALLOC(arena, NULL, 10);
        CHECK(fresh && HG_REALLOC(arena, fresh, 0) == NULL);
        HG_FREE(arena, zero);
        HG_FREE(arena, aligned);
    }
    errno = 0;
    CHECK(HG_CALLOC(arena, SIZE_MAX / 2, 3) == NULL && errno == ENOMEM);
    hg_trim(arena);
    CHECK(hg_live_bytes(arena) == 0 && stats_of(arena).corruptions == 0);
    kept();
    return 0;
}
