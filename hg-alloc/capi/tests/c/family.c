/* malloc and its family do what those of the C library do, in an arena of either kind. */
#include "check.h"

static void blocks(hg_arena *arena, size_t least_align) {
    uint64_t state = seed(7);
    enum { SLOTS = 64 };
    struct {
        unsigned char *p;
        size_t size;
    } slots[SLOTS];
    memset(slots, 0, sizeof slots);
    for (int i = 0; i < rounds(20000); i++) {
        int s = (int)(draw(&state) % SLOTS);
        size_t size = 1 + draw(&state) % (1u << (4 + draw(&state) % 16));
        if (!slots[s].p) {
            slots[s].p = (unsigned char *)hg_malloc(arena, size);
            CHECK(slots[s].p && (uintptr_t)slots[s].p % least_align == 0);
            CHECK(hg_owns(arena, slots[s].p) && hg_usable_size(arena, slots[s].p) >= size);
            slots[s].size = size;
            stamp(slots[s].p, size, (uint64_t)s);
            continue;
        }
        check_stamp(slots[s].p, slots[s].size, (uint64_t)s);
        if (draw(&state) % 4 == 0) {
            size_t both = size < slots[s].size ? size : slots[s].size;
            slots[s].p = (unsigned char *)hg_realloc(arena, slots[s].p, size);
            CHECK(slots[s].p);
            check_stamp(slots[s].p, both, (uint64_t)s);
            slots[s].size = size;
            stamp(slots[s].p, size, (uint64_t)s);
        } else {
            hg_free(arena, slots[s].p);
            slots[s].p = NULL;
        }
    }
    for (int s = 0; s < SLOTS; s++) hg_free(arena, slots[s].p);
}

static void edges(hg_arena *arena) {
    void *empty = hg_malloc(arena, 0);
    CHECK(empty && hg_realloc(arena, empty, 0) == NULL);
    hg_free(arena, NULL);
    CHECK(hg_usable_size(arena, NULL) == 0);

    void *fresh = hg_realloc(arena, NULL, 100);
    CHECK(fresh);
    memset(fresh, 0xff, 100);
    hg_free(arena, fresh);
    for (size_t size = 1; size < 100000; size = size * 3 + 1) {
        unsigned char *dirty = (unsigned char *)hg_malloc(arena, size);
        CHECK(dirty);
        memset(dirty, 0xff, size);
        hg_free(arena, dirty);
        unsigned char *zero = (unsigned char *)hg_calloc(arena, size, 1);
        CHECK(zero);
        for (size_t i = 0; i < size; i++) CHECK(zero[i] == 0);
        hg_free(arena, zero);
    }

    errno = 0;
    CHECK(hg_calloc(arena, SIZE_MAX / 2, 3) == NULL && errno == ENOMEM);
    errno = 0;
    CHECK(hg_malloc(arena, SIZE_MAX) == NULL && errno == ENOMEM);
    errno = 0;
    CHECK(hg_malloc(arena, (size_t)hg_cap_bytes(arena) + 1) == NULL && errno == ENOMEM);
    errno = 77;
    hg_free(arena, hg_malloc(arena, 24));
    CHECK(errno == 77);

    for (size_t align = 1; align <= 2u << 20; align *= 2) {
        for (size_t size = 1; size <= 100000; size = size * 7 + 1) {
            void *block = hg_aligned_alloc(arena, align, size);
            CHECK(block && (uintptr_t)block % align == 0 && hg_usable_size(arena, block) >= size);
            memset(block, 1, size);
            hg_free(arena, block);
        }
    }
    errno = 0;
    CHECK(hg_aligned_alloc(arena, 24, 100) == NULL && errno == EINVAL);
    errno = 0;
    CHECK(hg_aligned_alloc(arena, 0, 100) == NULL && errno == EINVAL);
}

static void all_memory(hg_arena *arena) {
    void *list = NULL;
    size_t count = 0;
    errno = 0;
    for (;;) {
        void **block = (void **)hg_malloc(arena, 1 << 20);
        if (!block) break;
        *block = list;
        list = block;
        count++;
    }
    CHECK(errno == ENOMEM && count >= 200 && count <= 256);
    CHECK(stats_of(arena).allocs_failed >= 1);
    while (list) {
        void *next = *(void **)list;
        hg_free(arena, list);
        list = next;
    }
    hg_trim(arena);
    CHECK(hg_committed_bytes(arena) <= 16 << 20);
}

int main(void) {
    const uint32_t kinds[] = {HG_KIND_PRIVATE, HG_KIND_SHARED};
    for (int i = 0; i < 2; i++) {
        hg_arena *arena = make(kinds[i], "family");
        blocks(arena, 16);
        edges(arena);
        all_memory(arena);
        CHECK(hg_used_bytes(arena) <= hg_committed_bytes(arena));
        CHECK(hg_peak_bytes(arena) >= 200u << 20 && hg_cap_bytes(arena) == 256u << 20);
        hg_stats stats = stats_of(arena);
        CHECK(stats.corruptions == 0 && stats.cap_bytes == 256u << 20 && stats.grows > 0);
        CHECK(stats.live_bytes == 0);
    }
    hg_options options;
    hg_arena *one = NULL;
    CHECK(hg_options_init(&options, sizeof options) == HG_STATUS_OK);
    options.flags = HG_FLAG_SINGLE_THREADED;
    options.cap_bytes = 256 << 20;
    CHECK(hg_arena_create(&options, &one) == HG_STATUS_OK);
    blocks(one, 16);
    edges(one);
    all_memory(one);
    void *twice = hg_malloc(one, 100);
    hg_free(one, twice);
    hg_free(one, twice);
    hg_trim(one);
    CHECK(stats_of(one).corruptions == 1 && stats_of(one).live_bytes == 0);
    options.kind = HG_KIND_SHARED;
    CHECK(hg_arena_create(&options, &one) == HG_STATUS_KIND && !one);

    hg_arena *odd = NULL;
    CHECK(hg_options_init(&options, sizeof options) == HG_STATUS_OK);
    options.flags = HG_FLAG_ODD_STRIDES;
    options.cap_bytes = 256 << 20;
    CHECK(hg_arena_create(&options, &odd) == HG_STATUS_OK);
    blocks(odd, 8);
    uintptr_t low_bits = 0;
    for (int i = 0; i < 64; i++) low_bits |= (uintptr_t)hg_malloc(odd, 64);
    CHECK((low_bits & 8) != 0);
    kept();
    return 0;
}
