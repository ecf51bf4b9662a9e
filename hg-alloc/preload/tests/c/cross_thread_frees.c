/* Producers allocate, consumers verify and free: no block is lost, doubled or torn, and memory is bounded. */
#include "check.h"
#include <pthread.h>

enum { PAIRS = 2, ITEMS = 200000, RING = 1024 };

struct block { size_t size; uint64_t stamp; };
struct ring { struct block *slots[RING]; unsigned head, tail; };
static struct ring rings[PAIRS];

static void *produce(void *arg) {
    struct ring *r = arg;
    uint64_t state = 1 + (uintptr_t)arg;
    for (unsigned n = 0; n < ITEMS; n++) {
        while (n - __atomic_load_n(&r->tail, __ATOMIC_ACQUIRE) == RING) sched_yield();
        size_t size = sizeof(struct block) + draw(&state) % 2000;
        struct block *b = malloc(size);
        CHECK(b);
        memset(b, (int)(n & 0xff), size);
        b->size = size, b->stamp = n;
        r->slots[n % RING] = b;
        __atomic_store_n(&r->head, n + 1, __ATOMIC_RELEASE);
    }
    return NULL;
}

static void *consume(void *arg) {
    struct ring *r = arg;
    for (unsigned n = 0; n < ITEMS; n++) {
        while (__atomic_load_n(&r->head, __ATOMIC_ACQUIRE) == n) sched_yield();
        struct block *b = r->slots[n % RING];
        CHECK(b->stamp == n);
        for (size_t i = sizeof *b; i < b->size; i++) CHECK(((unsigned char *)b)[i] == (n & 0xff));
        free(b);
        __atomic_store_n(&r->tail, n + 1, __ATOMIC_RELEASE);
    }
    return NULL;
}

static void promise(void) {
    pthread_t threads[2 * PAIRS];
    for (int i = 0; i < PAIRS; i++) {
        CHECK(pthread_create(&threads[2 * i], NULL, produce, &rings[i]) == 0);
        CHECK(pthread_create(&threads[2 * i + 1], NULL, consume, &rings[i]) == 0);
    }
    for (int i = 0; i < 2 * PAIRS; i++) pthread_join(threads[i], NULL);
}
