/* Reads rows of tables and predictions from `sanderling serve` over HTTP. It needs POSIX sockets and no library.
 *
 * A client keeps one connection and is for one thread at a time. Functions return 0, or -1 with a text in
 * sanderling_error(). Numbers in answers are little-endian; so must be this machine. */
#ifndef SANDERLING_H
#define SANDERLING_H

#include <stddef.h>
#include <stdint.h>

typedef struct sanderling sanderling;

/* Rows of a table, one per key or value, or pooled. Free them with sanderling_free_rows. */
typedef struct {
    uint64_t version; /* of the model that answered */
    uint32_t rows, dim, absent;
    const float *weights;          /* rows * dim; those of an absent row are 0 */
    const uint32_t *absent_places; /* of the keys or values without a row, ascending */
    void *memory;
} sanderling_rows;

/* A client of host and port, such as "127.0.0.1" and "8500"; the token may be NULL. Connects at the first request.
 * NULL: no memory. */
sanderling *sanderling_new(const char *host, const char *port, const char *token, int timeout_seconds);
void sanderling_free(sanderling *client);

/* Looks rows up by key. `options` are parameters of docs/serving.md, such as "pooling=sum&lengths=2,3", or "". */
int sanderling_rows_of_keys(sanderling *client, const char *table, const uint64_t *keys, size_t count,
                            const char *options, sanderling_rows *rows);

/* Looks rows up by the text of a feature, which becomes the key as in training. */
int sanderling_rows_of_values(sanderling *client, const char *table, const char *const *values, size_t count,
                              const char *options, sanderling_rows *rows);
void sanderling_free_rows(sanderling_rows *rows);

/* Scores rows in JSON, such as [{"user":"u17","genres":["a","b"]}]; writes at most `count` scores and returns their
 * number, or -1. */
int sanderling_predict(sanderling *client, const char *rows_json, float *scores, size_t count);

/* Why the last function failed. */
const char *sanderling_error(const sanderling *client);

/* HTTP status of the last answer; 503 and 504 may be tried again. 0: none came. */
int sanderling_status(const sanderling *client);

#endif
