/* Faults that each sanitizer must find, so that "nothing was found" means something. */
#include <pthread.h>
#include <stdlib.h>

static int shared;

static void *write_shared(void *argument) {
    (void)argument;
    for (int i = 0; i < 10000; i++) shared++;
    return NULL;
}

int planted_race(void) {
    pthread_t other;
    if (pthread_create(&other, NULL, write_shared, NULL)) return -1;
    write_shared(NULL);
    pthread_join(other, NULL);
    return shared;
}

int planted_memory(int beyond) {
    volatile int *array = malloc(4 * sizeof *array);
    array[3 + beyond] = 7;
    int found = array[3 + beyond];
    free((void *)array);
    return found;
}

int planted_overflow(int most) { return most + 1; }
