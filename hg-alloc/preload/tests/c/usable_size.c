/* malloc_usable_size is at least what was asked, does not change over a block's life, may be written in full, and is
 * carried along by realloc together with everything below it. */
#include "check.h"
#include <malloc.h>

static void promise(void) {
    CHECK(malloc_usable_size(NULL) == 0);
    for (size_t n = 1; n < (size_t)8 << 20; n += 1 + n / 5) {
        unsigned char *p = opaque(malloc(n));
        CHECK(p);
        size_t usable = malloc_usable_size(p);
        CHECK(usable >= n);
        for (size_t i = 0; i < usable; i++) p[i] = (unsigned char)(i * 31 + n);
        void *others[8];
        for (int k = 0; k < 8; k++) memset(others[k] = opaque(malloc(n)), 0, n);
        CHECK(malloc_usable_size(p) == usable);
        unsigned char *q = opaque(realloc(p, usable + 1 + usable / 3));
        CHECK(q);
        for (size_t i = 0; i < usable; i++) CHECK(q[i] == (unsigned char)(i * 31 + n));
        q = opaque(realloc(q, n / 2 + 1));
        CHECK(q);
        for (size_t i = 0; i < n / 2 + 1; i++) CHECK(q[i] == (unsigned char)(i * 31 + n));
        free(q);
        for (int k = 0; k < 8; k++) free(others[k]);
    }
}
