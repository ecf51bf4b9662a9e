/* A library opened long after the start allocates for the program, frees the program's blocks, and may be closed again. */
#include "check.h"
#include <dlfcn.h>

static void promise(void) {
    for (int i = 0; i < 50; i++) {
        void *library = dlopen(getenv("PLUGIN"), RTLD_NOW | RTLD_LOCAL);
        if (!library) dprintf(2, "%s\n", dlerror());
        CHECK(library);
        char *(*make)(const char *) = (char *(*)(const char *))dlsym(library, "plugin_make");
        void (*destroy)(char *) = (void (*)(char *))dlsym(library, "plugin_destroy");
        CHECK(make && destroy);
        char *made = make("word");
        CHECK(strcmp(made, "word word") == 0);
        destroy(strdup("ours"));
        CHECK(dlclose(library) == 0);
        free(made);
        exercise(i, 200);
    }
    CHECK(dlopen("/nonexistent.so", RTLD_NOW) == NULL && dlerror() != NULL);
}
