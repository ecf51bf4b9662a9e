/* Every entry answers edge cases as glibc documents them: result, errno, and what stays untouched. */
#include "check.h"
#include <malloc.h>

#define FAILS(call, code)                       \
    do {                                        \
        errno = 0;                              \
        CHECK(opaque((void *)(call)) == NULL);  \
        CHECK(errno == (code));                 \
    } while (0)

static void zero_sizes(void) {
    void *a = opaque(malloc(0)), *b = opaque(malloc(0)), *c = opaque(calloc(0, 8)), *d = opaque(calloc(8, 0));
    CHECK(a && b && c && d && a != b && c != d);
    free(a), free(b), free(c), free(d);
    void *e = opaque(realloc(NULL, 0));
    CHECK(e);
    errno = 0;
    CHECK(opaque(realloc(e, opaque_size(0))) == NULL && errno == 0); /* freed, which is no error */
    void *f = NULL;
    CHECK(posix_memalign(&f, 64, 0) == 0 && f);
    free(f);
    void *g = opaque(memalign(64, 0));
    CHECK(g);
    free(g);
    free(NULL);
}

static void too_large(void) {
    size_t sizes[] = {(size_t)PTRDIFF_MAX + 1, SIZE_MAX, SIZE_MAX - 15, SIZE_MAX - 4096, SIZE_MAX / 2 + 1};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t n = opaque_size(sizes[i]);
        FAILS(malloc(n), ENOMEM);
        FAILS(calloc(n, 1), ENOMEM);
        FAILS(calloc(1, n), ENOMEM);
        FAILS(memalign(64, n), ENOMEM);
        FAILS(aligned_alloc(4096, n), ENOMEM);
        FAILS(valloc(n), ENOMEM);
        FAILS(pvalloc(n), ENOMEM);
        FAILS(realloc(NULL, n), ENOMEM);
        void *untouched = (void *)0x1234;
        CHECK(posix_memalign(&untouched, 64, n) == ENOMEM && untouched == (void *)0x1234);
        unsigned char *p = opaque(malloc(100));
        CHECK(p);
        memset(p, 7, 100);
        FAILS(realloc(p, n), ENOMEM);
        for (int k = 0; k < 100; k++) CHECK(p[k] == 7); /* a failed realloc leaves the block alone */
        free(p);
    }
}

static void overflow(void) {
    FAILS(calloc(opaque_size(SIZE_MAX / 2), opaque_size(3)), ENOMEM);
    FAILS(calloc(opaque_size((size_t)1 << 33), opaque_size((size_t)1 << 33)), ENOMEM);
    FAILS(calloc(opaque_size((size_t)1 << 32), opaque_size((size_t)1 << 32)), ENOMEM);
    void *p = opaque(malloc(10));
    FAILS(reallocarray(opaque(p), opaque_size(SIZE_MAX / 2), opaque_size(3)), ENOMEM);
    void *q = opaque(reallocarray(opaque(p), 10, 10));
    CHECK(q);
    free(q);
}

static void alignments(void) {
    size_t bad[] = {0, 1, 2, 3, 4, 7, 12, 24, 0x300, 4097, SIZE_MAX, SIZE_MAX / 2};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        void *untouched = (void *)0x1234;
        errno = 0;
        CHECK(posix_memalign(&untouched, bad[i], 64) == EINVAL);
        CHECK(untouched == (void *)0x1234 && errno == 0); /* the code is the result, errno is left alone */
    }
    size_t odd[] = {3, 24, 0x300, 4097};
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        if (getenv("LD_PRELOAD")) FAILS(aligned_alloc(opaque_size(odd[i]), 64), EINVAL);
        void *p = opaque(memalign(odd[i], 64)); /* memalign rounds other alignments up */
        CHECK(p && (uintptr_t)p % 4 == 0);
        free(p);
    }
    FAILS(memalign(opaque_size(SIZE_MAX), 64), EINVAL);
    for (int shift = 40; shift < 64; shift++) {
        void *p = opaque(aligned_alloc((size_t)1 << shift, 64)); /* no memory is a fine answer, a wrong address is none */
        CHECK(p == NULL || (uintptr_t)p % ((size_t)1 << shift) == 0);
        free(p);
    }
}

static void errno_is_preserved(void) {
    for (size_t n = 1; n < (size_t)64 << 20; n = n * 3 + 1) {
        errno = 4711;
        void *p = opaque(malloc(n));
        CHECK(p && errno == 4711);
        p = opaque(realloc(p, n * 2));
        CHECK(p && errno == 4711);
        free(p);
        CHECK(errno == 4711);
        p = opaque(calloc(1, n));
        CHECK(p && errno == 4711);
        free(p);
        CHECK(errno == 4711);
    }
}

static void promise(void) {
    zero_sizes();
    too_large();
    overflow();
    alignments();
    errno_is_preserved();
}
