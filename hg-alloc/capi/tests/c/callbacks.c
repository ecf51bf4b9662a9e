/* Stalls of locks and blocked growth are told to the program, outside every lock. Run with HG_LOCK_STALL_US=1, so that
 * each lock that is waited for is a stall. */
#include "check.h"

#include <pthread.h>

static hg_arena *arena;
static uint64_t waits, holds;

static void lock_stall(void *context, hg_arena *where, const hg_lock_stall *event) {
    CHECK(context == &arena && where == arena && event->ns >= 1000 && event->waited <= 1);
    CHECK(strcmp(hg_reason_label(event->reason), "unknown") != 0 && event->lock <= 300 << 10);
    __atomic_fetch_add(event->waited ? &waits : &holds, 1, __ATOMIC_RELAXED);
    /* With any lock held, one of these would hang: they take the locks of all classes, and the grid's. */
    for (size_t size = 16; size <= 256 << 10; size *= 2) {
        void *blocks[8];
        CHECK(hg_malloc_many(arena, size, blocks, 8) == 8);
        hg_free_many(arena, blocks, 8);
    }
    void *large = hg_malloc(arena, 1 << 20);
    CHECK(large);
    hg_free(arena, large);
}

static void *work(void *argument) {
    uint64_t state = seed((uint64_t)(uintptr_t)argument);
    enum { SLOTS = 256 };
    void *slots[SLOTS];
    memset(slots, 0, sizeof slots);
    for (int i = 0; i < rounds(2000); i++) {
        int s = (int)(draw(&state) % SLOTS);
        hg_free(arena, slots[s]);
        slots[s] = hg_malloc(arena, 1 + draw(&state) % (32 << 10));
        CHECK(slots[s]);
    }
    for (int s = 0; s < SLOTS; s++) hg_free(arena, slots[s]);
    return NULL;
}

int main(void) {
    hg_callbacks callbacks;
    memset(&callbacks, 0, sizeof callbacks);
    callbacks.struct_size = sizeof callbacks;
    callbacks.context = &arena;
    callbacks.lock_stall = lock_stall;
    arena = make(HG_KIND_SHARED, "callbacks");
    CHECK(hg_set_callbacks(&callbacks) == HG_STATUS_OK);
    pthread_t threads[4];
    for (uintptr_t i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, work, (void *)(i + 1)) == 0);
    for (int i = 0; i < 4; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(hg_set_callbacks(NULL) == HG_STATUS_OK);
    printf("%llu waits, %llu holds\n", (unsigned long long)waits, (unsigned long long)holds);
    CHECK(holds > 0);
    hg_trim(arena);
    CHECK(hg_live_bytes(arena) == 0 && stats_of(arena).corruptions == 0);
    kept();
    return 0;
}
