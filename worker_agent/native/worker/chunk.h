/* The states of a worker's chunk. A chunk is in one state, so no combination of flags is undefined; an event without a
 * meaning in a state leaves the chunk as it is.
 *
 *                sends            asked, refused                 repeated
 *     UNSENT --> SENT        --> SENT_AGAIN, SENT_ALONE      --> SENT
 *            --> ELSEWHERE   --> ELSEWHERE_AGAIN, ..._ALONE  --> ELSEWHERE
 *            --> AWAITED     --> AWAITED_ALONE               --> AWAITED
 *
 * All of these become ANSWERED by the chunk's result, those of ELSEWHERE also when the root says that the chunk is
 * complete. A cell of the ring begins again, UNSENT, when the window passes it, and when its operation fails. */
#ifndef INART_WORKER_CHUNK_H
#define INART_WORKER_CHUNK_H

#include <stdbool.h>

enum chunk_state {
    CHUNK_UNSENT,
    CHUNK_SENT,       /* this worker waits for its result */
    CHUNK_SENT_AGAIN, /* ... and sends it once more, in its turn */
    CHUNK_SENT_ALONE, /* ... past all switches */
    CHUNK_ELSEWHERE,  /* its result goes to others: this worker waits until it is complete */
    CHUNK_ELSEWHERE_AGAIN,
    CHUNK_ELSEWHERE_ALONE,
    CHUNK_AWAITED,       /* another worker sends it, in a gather: there is nothing of this worker's to repeat */
    CHUNK_AWAITED_ALONE, /* ... and this worker asks for it */
    CHUNK_ANSWERED
};

enum chunk_event {
    CHUNK_SENDS,           /* for the first time */
    CHUNK_SENDS_ELSEWHERE, /* ... a chunk whose result goes to others */
    CHUNK_COMES_TO,        /* ... another worker's chunk, for which nothing is sent */
    CHUNK_ASKED,           /* the root or the controller wants this worker's contribution once more */
    CHUNK_ASKED_ALONE,     /* ... past all switches */
    CHUNK_REFUSED,         /* its result was wrong */
    CHUNK_REPEATED,        /* it was sent, or asked for, once more */
    CHUNK_RESULT,
    CHUNK_COMPLETE /* the root has it; its result is somewhere else, or on its way */
};

/* Returns whether this worker waits for something of the chunk. */
static inline bool chunk_in_progress(enum chunk_state s) { return s != CHUNK_UNSENT && s != CHUNK_ANSWERED; }

/* Returns the state without its wish to send: SENT, ELSEWHERE or AWAITED; other states as they are. */
static inline enum chunk_state chunk_waiting(enum chunk_state s) {
    switch (s) {
    case CHUNK_SENT_AGAIN:
    case CHUNK_SENT_ALONE:
        return CHUNK_SENT;
    case CHUNK_ELSEWHERE_AGAIN:
    case CHUNK_ELSEWHERE_ALONE:
        return CHUNK_ELSEWHERE;
    case CHUNK_AWAITED_ALONE:
        return CHUNK_AWAITED;
    default:
        return s;
    }
}

/* Returns whether the chunk is to be sent once more, and whether past all switches. */
static inline bool chunk_goes_again(enum chunk_state s) { return s != chunk_waiting(s); }

static inline bool chunk_goes_alone(enum chunk_state s) {
    return s == CHUNK_SENT_ALONE || s == CHUNK_ELSEWHERE_ALONE || s == CHUNK_AWAITED_ALONE;
}

static inline enum chunk_state chunk_after(enum chunk_state s, enum chunk_event event) {
    enum chunk_state waiting = chunk_waiting(s);
    switch (event) {
    case CHUNK_SENDS:
        return s == CHUNK_UNSENT ? CHUNK_SENT : s;
    case CHUNK_SENDS_ELSEWHERE:
        return s == CHUNK_UNSENT ? CHUNK_ELSEWHERE : s;
    case CHUNK_COMES_TO:
        return s == CHUNK_UNSENT ? CHUNK_AWAITED : s;
    case CHUNK_ASKED:
        return waiting == CHUNK_SENT ? CHUNK_SENT_AGAIN : waiting == CHUNK_ELSEWHERE ? CHUNK_ELSEWHERE_AGAIN : s;
    case CHUNK_ASKED_ALONE:
        return waiting == CHUNK_SENT ? CHUNK_SENT_ALONE : waiting == CHUNK_ELSEWHERE ? CHUNK_ELSEWHERE_ALONE : s;
    case CHUNK_REFUSED:
        return waiting == CHUNK_AWAITED ? CHUNK_AWAITED_ALONE : chunk_after(s, CHUNK_ASKED_ALONE);
    case CHUNK_REPEATED:
        return waiting;
    case CHUNK_RESULT:
        return CHUNK_ANSWERED;
    case CHUNK_COMPLETE:
        return waiting == CHUNK_ELSEWHERE ? CHUNK_ANSWERED : s;
    }
    return s;
}

#endif
