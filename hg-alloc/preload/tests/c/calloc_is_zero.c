/* calloc returns zeros also where dirty memory is recycled, small and large, before and after a trim. */
#include "check.h"
#include <malloc.h>

static void promise(void) {
    for (int round = 0; round < 3; round++) {
        for (size_t n = 1; n < (size_t)6 << 20; n += 1 + n / 3) {
            unsigned char *dirty[4];
            for (int k = 0; k < 4; k++) memset(dirty[k] = opaque(malloc(n)), 0xa5, n);
            for (int k = 0; k < 4; k++) free(dirty[k]);
            for (int k = 0; k < 4; k++) {
                dirty[k] = opaque(calloc(n, 1));
                CHECK(dirty[k]);
                for (size_t i = 0; i < n; i++) CHECK(dirty[k][i] == 0);
                memset(dirty[k], 0x5a, n);
            }
            for (int k = 0; k < 4; k++) free(dirty[k]);
        }
        malloc_trim(0);
    }
}
