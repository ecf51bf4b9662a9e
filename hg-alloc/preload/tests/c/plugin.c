/* The library that late_dlopen opens. */
#include <stdlib.h>
#include <string.h>

static void *held;

__attribute__((constructor)) static void open_up(void) { held = malloc(12345); }
__attribute__((destructor)) static void close_down(void) { free(held); }

char *plugin_make(const char *word) {
    size_t n = strlen(word);
    char *p = malloc(2 * n + 2);
    if (p) memcpy(p, word, n), p[n] = ' ', memcpy(p + n + 1, word, n + 1);
    return p;
}

void plugin_destroy(char *p) { free(p); }
