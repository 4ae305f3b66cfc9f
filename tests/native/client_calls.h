/* Given to the compiler before the clients in C: calls that client_checks.c has signals interrupt. */
#ifndef CLIENT_CALLS_H
#define CLIENT_CALLS_H

#include <poll.h>
#include <sys/socket.h>

int checked_connect(int descriptor, const struct sockaddr *address, socklen_t length);
int checked_poll(struct pollfd *descriptors, nfds_t count, int milliseconds);
ssize_t checked_recv(int descriptor, void *data, size_t size, int flags);
ssize_t checked_send(int descriptor, const void *data, size_t size, int flags);
#define connect(descriptor, address, length) checked_connect(descriptor, address, length)
#define poll(descriptors, count, milliseconds) checked_poll(descriptors, count, milliseconds)
#define recv(descriptor, data, size, flags) checked_recv(descriptor, data, size, flags)
#define send(descriptor, data, size, flags) checked_send(descriptor, data, size, flags)

#endif
