#include <hg.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void) {
    hg_options options;
    hg_arena *arena;
    hg_options_init(&options, sizeof options);
    options.kind = HG_KIND_SHARED;
    options.name = "example";
    options.size = "8m:1g";
    hg_status status = hg_arena_create(&options, &arena);
    if (status != HG_STATUS_OK) {
        fprintf(stderr, "no arena: %s\n", hg_status_text(status));
        return 1;
    }

    char *message = hg_malloc(arena, 100);
    pid_t child = fork();
    if (child == 0) {
        hg_set_role(arena, "writer");
        snprintf(message, 100, "written by the child");
        _exit(0);
    }
    waitpid(child, NULL, 0);
    hg_recover(arena, NULL);
    printf("%s, read by the parent\n", message);
    hg_free(arena, message);
    puts("kept");
    return 0;
}
