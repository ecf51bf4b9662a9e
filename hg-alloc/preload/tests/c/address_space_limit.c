/* Under a small RLIMIT_AS malloc returns NULL with ENOMEM when nothing is left, works again after frees, and a limit set at
 * the start (by the shell) still leaves a working program. */
#include "check.h"
#include <sys/resource.h>

static void promise(void) {
    if (!getenv("LIMIT_IS_SET")) {
        struct rlimit limit = {(rlim_t)400 << 20, (rlim_t)400 << 20};
        CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
        char *argv[] = {"address_space_limit", NULL};
        CHECK(setenv("LIMIT_IS_SET", "1", 1) == 0);
        execv("/proc/self/exe", argv);
        CHECK(!"exec");
    }
    enum { BLOCK = 1 << 20, MOST = 2000 };
    static char *blocks[MOST];
    int n = 0;
    errno = 0;
    while (n < MOST && (blocks[n] = opaque(malloc(BLOCK)))) blocks[n][0] = blocks[n][BLOCK - 1] = 1, n++;
    CHECK(n >= 20 && n < 400 && errno == ENOMEM);
    errno = 0;
    CHECK(opaque(malloc((size_t)1 << 30)) == NULL && errno == ENOMEM);
    for (int i = 0; i < n; i++) free(blocks[i]);
    exercise(1, 20000);
    int again = 0;
    while (again < MOST && (blocks[again] = opaque(malloc(BLOCK)))) again++;
    CHECK(again >= n * 9 / 10);
    for (int i = 0; i < again; i++) free(blocks[i]);
}
