/* 500 forks from a program whose threads allocate all the while; every child allocates, frees and exits. */
#include "check.h"
#include <pthread.h>
#include <sys/wait.h>

enum { THREADS = 3, FORKS = 500 };

static volatile int stop;

static void *load(void *arg) {
    for (uint64_t round = 0; !stop; round++) exercise((uintptr_t)arg * 1000 + round, 500);
    return NULL;
}

static void promise(void) {
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, load, (void *)i) == 0);
    for (int i = 0; i < FORKS; i++) {
        void *inherited = malloc(1000 + i);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            alarm(20);
            free(inherited);
            exercise(i, 300);
            _exit(42);
        }
        free(inherited);
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 42);
    }
    stop = 1;
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
}
