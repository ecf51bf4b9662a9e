/* popen, system and posix_spawn work while other threads allocate. */
#include "check.h"
#include <pthread.h>
#include <spawn.h>
#include <sys/wait.h>

extern char **environ;
static volatile int stop;

static void *load(void *arg) {
    for (uint64_t round = 0; !stop; round++) exercise((uintptr_t)arg + round, 500);
    return NULL;
}

static void promise(void) {
    pthread_t threads[3];
    for (uintptr_t i = 0; i < 3; i++) CHECK(pthread_create(&threads[i], NULL, load, (void *)i) == 0);
    for (int i = 0; i < 40; i++) {
        char line[64] = "";
        FILE *f = popen("echo word", "r");
        CHECK(f && fgets(line, sizeof line, f) && strcmp(line, "word\n") == 0);
        CHECK(pclose(f) == 0);
        CHECK(WEXITSTATUS(system("exit 3")) == 3);
        pid_t child;
        char *argv[] = {"true", NULL};
        int status;
        CHECK(posix_spawnp(&child, "true", NULL, NULL, argv, environ) == 0);
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    stop = 1;
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
}
