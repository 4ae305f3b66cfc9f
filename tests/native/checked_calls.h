/* Given to the compiler before each file of the worker's engine: what worker_checks.c makes fail. */
#ifndef CHECKED_CALLS_H
#define CHECKED_CALLS_H

#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

int checked_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument);
int checked_close(int descriptor);
int checked_sendmmsg(int descriptor, struct mmsghdr *messages, unsigned count, int flags);
#define pthread_create checked_create
#define close checked_close
#define sendmmsg checked_sendmmsg

#endif
