/* Starting the engines' threads. */
#ifndef INART_THREADS_H
#define INART_THREADS_H

#include <pthread.h>
#include <signal.h>

/* Signals stay with the program's own threads: Python's main thread must be the one that Ctrl-C interrupts. 0 or an errno. */
static inline int inart_thread_start(pthread_t *thread, void *(*function)(void *), void *argument)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int result = pthread_create(thread, NULL, function, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return result;
}

#endif
