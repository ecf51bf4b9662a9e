/* A bad free is refused, counted, told with the place of the call, and the arena goes on; callbacks may allocate. */
#include "check.h"

static struct {
    int calls;
    uint32_t kind;
    void *address;
    char place[128];
    uint32_t line;
    hg_arena *arena;
} told;

static void corruption(void *context, hg_arena *arena, const hg_corruption *event) {
    CHECK(context == &told);
    told.calls++;
    told.kind = event->kind;
    told.address = event->address;
    told.arena = arena;
    told.line = event->line;
    snprintf(told.place, sizeof told.place, "%s", event->function ? event->function : "");
    /* No lock is held: the arena can be used, and what goes wrong in here is not told again. */
    void *block = hg_malloc(arena, 64);
    CHECK(block);
    hg_free(arena, block);
    hg_free(arena, block);
}

static void expect(hg_arena *arena, const char *label, void *address, int calls) {
    CHECK(told.calls == calls && told.arena == arena && told.address == address);
    CHECK(strcmp(hg_corruption_label(told.kind), label) == 0);
}

static void bad_frees(hg_arena *arena, hg_arena *other) {
    memset(&told, 0, sizeof told);
    char *block = (char *)hg_malloc(arena, 100);
    char *keeper = (char *)hg_malloc(arena, 100);
    char *large = (char *)hg_malloc(arena, 1 << 20);
    CHECK(block && keeper && large);

    hg_free(arena, block);
    hg_free(arena, block);
    expect(arena, "double free", block, 1);
    hg_free(arena, keeper + 16);
    expect(arena, "interior pointer", keeper + 16, 2);
    int on_the_stack = 0;
    hg_free(arena, &on_the_stack);
    expect(arena, "foreign pointer", &on_the_stack, 3);
    hg_free(arena, large + 4096);
    CHECK(told.calls == 4 && told.address == large + 4096);
    hg_free(arena, large);
    hg_free(arena, large);
    expect(arena, "double free", large, 5);

    void *others = hg_malloc(other, 100);
    hg_free(arena, others);
    CHECK(told.calls == 6 && told.address == others);
    hg_free(other, others);

    errno = 0;
    CHECK(hg_realloc(arena, keeper + 16, 200) == NULL && errno == EINVAL);
    CHECK(told.calls == 7 && hg_usable_size(arena, keeper + 16) == 0 && told.calls == 8);

    /* Where the call was made is told, if the call tells it. */
    CHECK(told.line == 0 && told.place[0] == 0);
    HG_FREE(arena, block);
    CHECK(told.calls == 9 && told.line == __LINE__ - 1 && strcmp(told.place, "bad_frees") == 0);

    hg_stats stats = stats_of(arena);
    /* Each callback made one more double free of its own. */
    CHECK(stats.corruptions == 18 && stats.double_frees >= 3 + 9);

    /* Nothing of this harmed the block that lives. */
    stamp(keeper, 100, 5);
    for (int i = 0; i < 1000; i++) {
        void *next = hg_malloc(arena, 100);
        CHECK(next && next != keeper);
        hg_free(arena, next);
    }
    check_stamp(keeper, 100, 5);
    hg_free(arena, keeper);
    CHECK(told.calls == 9);
}

int main(void) {
    hg_callbacks callbacks;
    memset(&callbacks, 0, sizeof callbacks);
    callbacks.struct_size = sizeof callbacks;
    callbacks.context = &told;
    callbacks.corruption = corruption;
    CHECK(hg_set_callbacks(&callbacks) == HG_STATUS_OK);
    hg_arena *shared = make(HG_KIND_SHARED, "shared");
    hg_arena *private = make(HG_KIND_PRIVATE, "private");
    bad_frees(shared, private);
    bad_frees(private, shared);
    CHECK(hg_set_callbacks(NULL) == HG_STATUS_OK);
    told.calls = 0;
    hg_free(shared, &told);
    CHECK(told.calls == 0);
    kept();
    return 0;
}
