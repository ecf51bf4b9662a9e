/* Double, interior, foreign, stack and nonsense frees and reallocs are refused; every block stays whole and the program
 * goes on. The driver reads the counters of the stats page, which must show each refusal. */
#include "check.h"
#include <malloc.h>
#include <sys/mman.h>

static int bad;

static void bad_free(void *p) {
    bad++;
    errno = 4711;
    free(opaque(p));
    CHECK(errno == 4711);
}

static void doubles(void) {
    size_t sizes[] = {1, 16, 24, 100, 1000, 5000, 40000, 200000};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        void *p = opaque(malloc(sizes[i]));
        CHECK(p);
        free(p);
        bad_free(p);
        bad_free(p);
        void *a = opaque(malloc(sizes[i])), *b = opaque(malloc(sizes[i]));
        CHECK(a && b && a != b); /* what a double free would have handed out twice */
        free(a), free(b);
    }
    void *large = opaque(malloc(3 << 20));
    free(large);
    bad_free(large);
    CHECK(opaque(malloc(100)));
}

static void interiors(void) {
    size_t sizes[] = {32, 100, 1000, 5000, 40000, 200000, 3 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        unsigned char *p = opaque(malloc(sizes[i]));
        CHECK(p);
        memset(p, 9, sizes[i]);
        bad_free(p + 1);
        bad_free(p + 8);
        bad_free(p + 16);
        bad_free(p + sizes[i] / 2);
        bad_free(p + sizes[i] - 1);
        for (size_t k = 0; k < sizes[i]; k++) CHECK(p[k] == 9);
        free(p);
    }
}

static void foreigners(void) {
    char local[64];
    static char fixed[64];
    char *mapped = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(mapped != MAP_FAILED);
    bad_free(local + 16);
    bad_free(fixed);
    bad_free(mapped);
    bad_free(mapped + 64);
    bad_free((void *)(uintptr_t)&bad_free);
    bad_free((void *)1);
    bad_free((void *)4096);
    bad_free((void *)(uintptr_t)SIZE_MAX);
    bad_free((void *)((uintptr_t)1 << 63));
    bad_free((void *)((uintptr_t)1 << 47));
    CHECK(munmap(mapped, 8192) == 0);
}

static void reallocs(void) {
    char local[64];
    void *p = opaque(malloc(100));
    free(p);
    bad++;
    CHECK(opaque(realloc(opaque(p), 200)) == NULL);
    bad++;
    CHECK(opaque(realloc(opaque(local + 16), 200)) == NULL);
    unsigned char *q = opaque(malloc(100));
    memset(q, 3, 100);
    bad++;
    CHECK(opaque(realloc(q + 16, 200)) == NULL);
    for (int i = 0; i < 100; i++) CHECK(q[i] == 3);
    free(q);
}

/* Sum of the counters of refused calls in our stats page, found as hg-top finds it. The driver passes where they stand. */
static uint64_t refused(void) {
    char line[512];
    uint64_t *page = NULL;
    FILE *f = fopen("/proc/self/maps", "r");
    CHECK(f);
    while (!page && fgets(line, sizeof line, f)) {
        if (strstr(line, "/memfd:hg.stats")) page = (uint64_t *)strtoul(line, NULL, 16);
    }
    fclose(f);
    CHECK(page && memcmp(page, "hg.stats", 8) == 0);
    uint64_t sum = 0;
    for (int kind = 0; kind < 8; kind++) sum += page[atoi(getenv("CORRUPTIONS_AT")) / 8 + kind];
    return sum;
}

static void promise(void) {
    CHECK(refused() == 0);
    doubles();
    interiors();
    foreigners();
    reallocs();
    if (refused() != (uint64_t)bad) dprintf(2, "%d bad calls, %lu refused\n", bad, (unsigned long)refused());
    CHECK(refused() == (uint64_t)bad);
    exercise(1, 20000);
}
