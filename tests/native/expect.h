/* For the C programs of this folder: each runs the checks that its arguments name, all of them without any, and says
 * what is not as it should be. */
#ifndef EXPECT_H
#define EXPECT_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPECT(condition)                                                           \
    do {                                                                            \
        if (!(condition)) {                                                         \
            fprintf(stderr, "%s:%d: not so: %s\n", __func__, __LINE__, #condition); \
            exit(1);                                                                \
        }                                                                           \
    } while (0)

struct probe {
    const char *name;
    void (*run)(void);
};

static int run_checks(const struct probe *checks, size_t count, int argc, char **argv) {
    for (size_t i = 0; i < count; i++) {
        int wanted = argc < 2;
        for (int j = 1; j < argc; j++) wanted |= strcmp(argv[j], checks[i].name) == 0;
        if (wanted) checks[i].run();
    }
    return 0;
}

#endif
