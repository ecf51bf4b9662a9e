/* Destructors of thread-specific data free, allocate, and set themselves up for another round, as late as glibc runs them. */
#include "check.h"
#include <pthread.h>

static pthread_key_t key;
static int rounds;

static void destroy(void *value) {
    free(value);
    exercise((uintptr_t)value, 100);
    if (__atomic_add_fetch(&rounds, 1, __ATOMIC_RELAXED) % 3) {
        void *again = malloc(300);
        CHECK(again && pthread_setspecific(key, again) == 0);
    }
}

static void *visit(void *arg) {
    CHECK(pthread_setspecific(key, malloc(100 + (uintptr_t)arg)) == 0);
    exercise((uintptr_t)arg, 100);
    return NULL;
}

static void promise(void) {
    CHECK(pthread_key_create(&key, destroy) == 0);
    for (uintptr_t n = 0; n < 500; n++) {
        pthread_t threads[4];
        for (uintptr_t i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, visit, (void *)(n + i)) == 0);
        for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    }
    CHECK(rounds >= 2000);
}
