/* Many threads of several processes allocate, pass blocks on, and come and go. */
#include "check.h"

#include <pthread.h>

enum { PROCESSES = 2, THREADS = 8, MAILBOXES = 128 };

static hg_arena *arena;
static uintptr_t *mailboxes;

static void *work(void *argument) {
    uint64_t state = seed((uint64_t)(uintptr_t)argument);
    for (int i = 0; i < rounds(12000); i++) {
        size_t size = sizeof(size_t) + draw(&state) % 2000;
        size_t *block = (size_t *)hg_malloc(arena, size);
        CHECK(block);
        stamp(block + 1, size - sizeof(size_t), size);
        *block = size;
        size_t *other = (size_t *)__atomic_exchange_n(&mailboxes[draw(&state) % MAILBOXES], (uintptr_t)block, __ATOMIC_ACQ_REL);
        if (!other) continue;
        check_stamp(other + 1, *other - sizeof(size_t), *other);
        hg_free(arena, other);
    }
    return NULL;
}

static void crowd(uint64_t first) {
    for (uint64_t round = 0; round < (is_emulated() ? 1u : 3u); round++) {
        pthread_t threads[THREADS];
        for (uint64_t i = 0; i < THREADS; i++) {
            CHECK(pthread_create(&threads[i], NULL, work, (void *)(uintptr_t)(first + round * THREADS + i)) == 0);
        }
        for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    }
}

int main(void) {
    arena = make(HG_KIND_SHARED, "threads");
    mailboxes = (uintptr_t *)hg_calloc(arena, MAILBOXES, sizeof *mailboxes);
    pid_t children[PROCESSES];
    for (int i = 0; i < PROCESSES; i++) {
        children[i] = fork();
        CHECK(children[i] >= 0);
        if (children[i] == 0) {
            crowd((uint64_t)(i + 1) * 1000);
            _exit(0);
        }
    }
    crowd(1);
    for (int i = 0; i < PROCESSES; i++) ended_well(children[i]);
    for (int i = 0; i < MAILBOXES; i++) hg_free(arena, (void *)mailboxes[i]);
    hg_free(arena, mailboxes);
    hg_recovered recovered;
    CHECK(hg_recover(arena, &recovered) == HG_STATUS_OK && recovered.blocks == 0);
    hg_trim(arena);
    hg_stats stats = stats_of(arena);
    CHECK(stats.live_bytes == 0 && stats.corruptions == 0);
    kept();
    return 0;
}
