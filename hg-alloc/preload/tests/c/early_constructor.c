/* A constructor of the highest priority allocates before main; destructors and exit handlers free after it. */
#include "check.h"

static unsigned char *early[200];
static int reached;

__attribute__((constructor(101))) static void first(void) {
    for (int i = 0; i < 200; i++) {
        early[i] = malloc((size_t)1 << (i % 18));
        CHECK(early[i]);
        early[i][0] = (unsigned char)i;
    }
    exercise(1, 1000);
}

static void release(int i) {
    CHECK(early[i][0] == (unsigned char)i);
    free(early[i]);
}

static void at_exit(void) {
    for (int i = 0; i < 100; i++) release(i);
    reached++;
}

__attribute__((destructor(101))) static void last(void) {
    for (int i = 100; i < 200; i++) release(i);
    exercise(2, 1000);
    if (reached != 1) _exit(1);
}

static void promise(void) {
    CHECK(atexit(at_exit) == 0);
    exercise(3, 1000);
}
