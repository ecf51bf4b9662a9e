// A few calls, one a line, for a debugger to step over and through (debugger.rs knows the lines).
#include <stdlib.h>

volatile int sum;

int main(void) {
    free(malloc(1));
    volatile char *block = malloc(64);
    block[0] = 1;
    sum += block[0];
    free((void *)block);
    sum += 10;
    return sum == 11 ? 0 : 1;
}
