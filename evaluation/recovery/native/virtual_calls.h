/* The agents' engines in virtual time: what they call of the C library and of the kernel, replaced (virtual.c). Given
 * to the compiler before each of their own sources, which stay as they are.
 *
 * Nothing runs beside anything else: no thread is started, and no lock is ever waited for.
 */
#ifndef INART_VIRTUAL_CALLS_H
#define INART_VIRTUAL_CALLS_H

#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

int virtual_clock(int clock, struct timespec *t);
int virtual_closed(int fd);
ssize_t virtual_written(int fd, const void *from, size_t size);
int virtual_answer(void *condition); /* where the engine has asked its thread for lanes */

#define clock_gettime(clock, t) virtual_clock((int)(clock), t)
#define if_nametoindex(name) ((name)[0] ? 1u : 0u)
#define close virtual_closed /* not with arguments: structures have members of these names */
#define write virtual_written
#define eventfd(count, flags) 3
#define epoll_create1(flags) 3
#define epoll_ctl(fd, operation, source, event) ((void)(event), 0)
#define ioctl(fd, request, argument) ((void)(argument), -1)
#define pthread_create(thread, attributes, run, argument) ((void)(run), 0)
#define pthread_join(thread, result) 0
#define pthread_getcpuclockid(thread, clock) ((void)(clock), 1)
#define pthread_cond_wait(condition, mutex) virtual_answer(condition)

#endif
