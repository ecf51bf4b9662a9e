/* 10,000 threads come and go, each leaving a block for another to free; memory does not grow with their number. */
#include "check.h"
#include <pthread.h>

enum { THREADS = 10000, AT_ONCE = 8 };

static void *left[AT_ONCE];

static void *visit(void *arg) {
    uintptr_t n = (uintptr_t)arg;
    exercise(n, 60);
    void **slot = &left[n % AT_ONCE];
    free(*slot);
    *slot = malloc(5000);
    return NULL;
}

static long resident_kib(void) {
    long pages = 0, unused;
    FILE *f = fopen("/proc/self/statm", "r");
    CHECK(f && fscanf(f, "%ld %ld", &unused, &pages) == 2);
    fclose(f);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

static void promise(void) {
    long after_first_tenth = 0;
    for (uintptr_t n = 0; n < THREADS; n += AT_ONCE) {
        pthread_t threads[AT_ONCE];
        for (uintptr_t i = 0; i < AT_ONCE; i++) CHECK(pthread_create(&threads[i], NULL, visit, (void *)(n + i)) == 0);
        for (int i = 0; i < AT_ONCE; i++) pthread_join(threads[i], NULL);
        if (n == THREADS / 10) after_first_tenth = resident_kib();
    }
    long grown = resident_kib() - after_first_tenth;
    if (grown > 8192) dprintf(2, "grown by %ld KiB\n", grown);
    CHECK(after_first_tenth > 0 && grown <= 8192);
}
