/* The states of a chunk at the root. A chunk is in one state, so no combination of flags is undefined; an event without
 * a meaning in a state leaves the chunk as it is. Nothing leads back from a complete chunk: workers have its result. */
#ifndef INART_ROOT_CELL_H
#define INART_ROOT_CELL_H

#include <stdbool.h>

enum cell_state {
    CELL_ADDS,          /* contributions are added as they come */
    CELL_ADDS_ANEW,     /* ... and what is there is forgotten when the first packet of the present attempt comes */
    CELL_VERIFIES,      /* it was wrong once: each packet is verified before it is added */
    CELL_VERIFIES_ANEW, /* ... and what is there is forgotten when the first packet of the present attempt comes */
    CELL_COMPLETE,
    CELL_REPEATED /* ... and its result was last sent once more to all workers, not to one */
};

enum cell_event {
    CELL_ASKED,      /* the workers that it lacks were asked for theirs */
    CELL_ASKED_ANEW, /* all were asked for theirs, which cannot be added to what is there */
    CELL_BEGUN,      /* the first packet of the present attempt has come, and what was there is forgotten */
    CELL_WRONG,      /* what was there was wrong, and is forgotten */
    CELL_FULL,       /* all contributions are there, and right */
    CELL_SENT_TO_ALL,
    CELL_SENT_TO_ONE
};

static inline bool cell_is_complete(enum cell_state s) { return s == CELL_COMPLETE || s == CELL_REPEATED; }

static inline bool cell_verifies(enum cell_state s) { return s == CELL_VERIFIES || s == CELL_VERIFIES_ANEW; }

static inline bool cell_begins_anew(enum cell_state s) { return s == CELL_ADDS_ANEW || s == CELL_VERIFIES_ANEW; }

static inline enum cell_state cell_after(enum cell_state s, enum cell_event event) {
    if (cell_is_complete(s))
        return event == CELL_SENT_TO_ALL ? CELL_REPEATED : event == CELL_SENT_TO_ONE ? CELL_COMPLETE : s;
    switch (event) {
    case CELL_ASKED:
    case CELL_BEGUN:
        return cell_verifies(s) ? CELL_VERIFIES : CELL_ADDS;
    case CELL_ASKED_ANEW:
        return cell_verifies(s) ? CELL_VERIFIES_ANEW : CELL_ADDS_ANEW;
    case CELL_WRONG:
        return CELL_VERIFIES;
    case CELL_FULL:
        return CELL_COMPLETE;
    case CELL_SENT_TO_ALL:
    case CELL_SENT_TO_ONE:
        break;
    }
    return s;
}

#endif
