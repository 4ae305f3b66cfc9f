/* Faults of the engines that random jobs or reports have found, each with the least that shows it. */
#ifndef TESTS_ENGINES_CASES_H
#define TESTS_ENGINES_CASES_H

/* Runs a case by its name. Returns 0; 1, after it has said what is wrong; or -1: there is no such case. */
int case_run(const char *name);

#endif
