/* A vfork child execs; another one allocates first, as real programs do. The parent's memory is sound afterwards. */
#include "check.h"
#include <pthread.h>
#include <sys/wait.h>

static volatile int stop;

static void *load(void *arg) {
    for (uint64_t round = 0; !stop; round++) exercise((uintptr_t)arg + round, 500);
    return NULL;
}

static void finish(pid_t child) {
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

static void promise(void) {
    pthread_t threads[2];
    for (uintptr_t i = 0; i < 2; i++) CHECK(pthread_create(&threads[i], NULL, load, (void *)i) == 0);
    for (int i = 0; i < 50; i++) {
        pid_t child = vfork();
        if (child == 0) {
            execlp("true", "true", (char *)NULL);
            _exit(1);
        }
        finish(child);
        void *volatile kept[64];
        child = vfork();
        if (child == 0) {
            for (int k = 0; k < 64; k++) {
                void *a = malloc(40 + k * 50);
                kept[k] = malloc(100);
                if (!a || !kept[k]) _exit(2);
                free(a);
            }
            execlp("true", "true", (char *)NULL);
            _exit(1);
        }
        finish(child);
        for (int k = 0; k < 64; k++) {
            memset(kept[k], 1, 100); /* the child's blocks are the parent's: they shared the address space */
            free(kept[k]);
        }
        exercise(i, 500);
    }
    stop = 1;
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
}
