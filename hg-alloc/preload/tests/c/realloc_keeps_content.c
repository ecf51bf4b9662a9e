/* A block grown and shrunk at random by realloc and reallocarray keeps the common prefix, whatever else happens beside. */
#include "check.h"

enum { BLOCKS = 48, ROUNDS = 20000 };

static void promise(void) {
    struct { unsigned char *p; size_t size; unsigned char seed; } b[BLOCKS] = {{0}};
    uint64_t state = 42;
    for (int round = 0; round < ROUNDS; round++) {
        int i = draw(&state) % BLOCKS;
        size_t size = 1 + draw(&state) % ((size_t)1 << (3 + draw(&state) % 18));
        size_t kept = b[i].size < size ? b[i].size : size;
        b[i].p = round % 3 ? realloc(b[i].p, size) : reallocarray(b[i].p, size, 1);
        CHECK(b[i].p);
        for (size_t k = 0; k < kept; k += 1 + kept / 512) CHECK(b[i].p[k] == (unsigned char)(b[i].seed + k * 7));
        if (kept) CHECK(b[i].p[kept - 1] == (unsigned char)(b[i].seed + (kept - 1) * 7));
        b[i].size = size;
        b[i].seed = (unsigned char)round;
        for (size_t k = 0; k < size; k++) b[i].p[k] = (unsigned char)(b[i].seed + k * 7);
    }
    for (int i = 0; i < BLOCKS; i++) free(b[i].p);
}
