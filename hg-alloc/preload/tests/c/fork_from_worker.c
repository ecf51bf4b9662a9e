/* A thread that is not the main one forks; its child, where it is the only thread, allocates, makes threads, forks again,
 * and leaves by exit() with all handlers. */
#include "check.h"
#include <pthread.h>
#include <sys/wait.h>

static volatile int stop;

static void *load(void *arg) {
    for (uint64_t round = 0; !stop; round++) exercise((uintptr_t)arg + round, 500);
    return NULL;
}

static void *once(void *arg) {
    exercise((uintptr_t)arg, 2000);
    return NULL;
}

static void finish(pid_t child) {
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
}

static void *forker(void *arg) {
    for (int i = 0; i < 40; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            alarm(20);
            pthread_t thread;
            CHECK(pthread_create(&thread, NULL, once, arg) == 0);
            exercise(i, 1000);
            pthread_join(thread, NULL);
            pid_t grandchild = fork();
            CHECK(grandchild >= 0);
            if (grandchild != 0) finish(grandchild);
            exercise(i, 1000);
            exit(7);
        }
        finish(child);
    }
    return NULL;
}

static void promise(void) {
    pthread_t loads[2], forkers[2];
    for (uintptr_t i = 0; i < 2; i++) CHECK(pthread_create(&loads[i], NULL, load, (void *)i) == 0);
    for (uintptr_t i = 0; i < 2; i++) CHECK(pthread_create(&forkers[i], NULL, forker, (void *)i) == 0);
    for (int i = 0; i < 2; i++) pthread_join(forkers[i], NULL);
    stop = 1;
    for (int i = 0; i < 2; i++) pthread_join(loads[i], NULL);
}
