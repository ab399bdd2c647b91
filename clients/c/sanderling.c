/* The client of sanderling.h: HTTP/1.1 requests with bodies of bytes, one after the other over one connection. */
#define _POSIX_C_SOURCE 200809L
#include "sanderling.h"

#include <netdb.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#define HEAD_BYTES_MAX 16384
#define ROWS_HEAD_BYTES 28

struct sanderling {
    char *host, *port, *token;
    int timeout_seconds, socket, status;
    char error[256];
};

static int fail(sanderling *client, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(client->error, sizeof client->error, format, arguments);
    va_end(arguments);
    if (client->socket >= 0) close(client->socket);
    client->socket = -1;
    return -1;
}

sanderling *sanderling_new(const char *host, const char *port, const char *token, int timeout_seconds) {
    sanderling *client = calloc(1, sizeof *client);
    if (!client) return NULL;
    client->host = strdup(host);
    client->port = strdup(port);
    client->token = strdup(token ? token : "");
    client->timeout_seconds = timeout_seconds;
    client->socket = -1;
    if (client->host && client->port && client->token) return client;
    sanderling_free(client);
    return NULL;
}

void sanderling_free(sanderling *client) {
    if (!client) return;
    if (client->socket >= 0) close(client->socket);
    free(client->host);
    free(client->port);
    free(client->token);
    free(client);
}

const char *sanderling_error(const sanderling *client) { return client->error; }

int sanderling_status(const sanderling *client) { return client->status; }

void sanderling_free_rows(sanderling_rows *rows) {
    free(rows->memory);
    memset(rows, 0, sizeof *rows);
}

static int open_socket(sanderling *client) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found, *address;
    struct timeval timeout = {.tv_sec = client->timeout_seconds};
    int failed = getaddrinfo(client->host, client->port, &hints, &found);
    if (failed) return fail(client, "%s: %s", client->host, gai_strerror(failed));
    for (address = found; address && client->socket < 0; address = address->ai_next) {
        client->socket = socket(address->ai_family, address->ai_socktype, address->ai_protocol);
        if (client->socket < 0) continue;
        setsockopt(client->socket, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
        setsockopt(client->socket, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
        if (connect(client->socket, address->ai_addr, address->ai_addrlen)) {
            close(client->socket);
            client->socket = -1;
        }
    }
    freeaddrinfo(found);
    return client->socket >= 0 ? 0 : fail(client, "cannot connect to %s:%s", client->host, client->port);
}

static int send_all(sanderling *client, const void *bytes, size_t count) {
    const char *rest = bytes;
    while (count) {
        ssize_t sent = send(client->socket, rest, count, MSG_NOSIGNAL);
        if (sent <= 0) return -1;
        rest += sent;
        count -= (size_t)sent;
    }
    return 0;
}

/* Receives an answer: its body, which the caller frees, with a 0 behind it. */
static int receive(sanderling *client, char **body, size_t *length) {
    char head[HEAD_BYTES_MAX + 1], *end = NULL, *line, *next;
    size_t have = 0, head_bytes, behind;
    long long expected = -1;
    int closes = 0;
    while (!end) {
        ssize_t got = have < HEAD_BYTES_MAX ? recv(client->socket, head + have, HEAD_BYTES_MAX - have, 0) : 0;
        if (got <= 0) return fail(client, have ? "the answer is cut, or late" : "no answer");
        have += (size_t)got;
        head[have] = 0;
        end = strstr(head, "\r\n\r\n");
    }
    head_bytes = (size_t)(end - head) + 4;
    behind = have - head_bytes;
    *end = 0;
    if (sscanf(head, "HTTP/1.%*d %d", &client->status) != 1) return fail(client, "the answer is not HTTP");
    for (line = strstr(head, "\r\n"); line; line = next) {
        line += 2;
        next = strstr(line, "\r\n");
        if (!strncasecmp(line, "content-length:", 15)) expected = atoll(line + 15);
        if (!strncasecmp(line, "connection: close", 17)) closes = 1;
    }
    if (expected < 0 || (unsigned long long)expected < behind) return fail(client, "the answer has no usable length");
    *length = (size_t)expected;
    *body = malloc(*length + 1);
    if (!*body) return fail(client, "no memory");
    memcpy(*body, head + head_bytes, behind);
    while (behind < *length) {
        ssize_t got = recv(client->socket, *body + behind, *length - behind, 0);
        if (got <= 0) {
            free(*body);
            return fail(client, "the answer is cut, or late");
        }
        behind += (size_t)got;
    }
    (*body)[*length] = 0;
    if (closes) {
        close(client->socket);
        client->socket = -1;
    }
    return 0;
}

/* Sends a request and receives the body of its answer. A connection that the server has closed is opened again. */
static int post(sanderling *client, const char *path, const char *kind, const void *body, size_t length, char **reply,
                size_t *reply_length) {
    char head[4096];
    int was_open = client->socket >= 0, tries;
    const char *name = client->token[0] ? "authorization: Bearer " : "";
    int bytes = snprintf(head, sizeof head,
                         "POST %s HTTP/1.1\r\nhost: %s\r\ncontent-type: %s\r\naccept: %s\r\ncontent-length: %zu\r\n%s%s%s\r\n",
                         path, client->host, kind, kind, length, name, client->token, client->token[0] ? "\r\n" : "");
    client->status = 0;
    if (bytes < 0 || (size_t)bytes >= sizeof head) return fail(client, "the request's path is too long");
    for (tries = 0; tries < 2; tries++) {
        if (client->socket < 0 && open_socket(client)) return -1;
        if (!send_all(client, head, (size_t)bytes) && !send_all(client, body, length) &&
            !receive(client, reply, reply_length))
            break;
        if (tries || !was_open) return fail(client, "%s:%s: no answer", client->host, client->port);
        if (client->socket >= 0) close(client->socket);
        client->socket = -1;
    }
    if (client->status == 200) return 0;
    snprintf(client->error, sizeof client->error, "%s (%d)", *reply, client->status);
    free(*reply);
    return -1;
}

static uint32_t number(const char *bytes) {
    uint32_t number;
    memcpy(&number, bytes, sizeof number);
    return number;
}

/* Asks for rows and reads the answer; docs/serving.md has its layout. */
static int ask_rows(sanderling *client, const char *table, const char *input, const void *body, size_t length,
                    const char *options, sanderling_rows *rows) {
    char path[2048], *reply;
    size_t reply_length;
    int bytes = snprintf(path, sizeof path, "/tables/%s/rows?input=%s&%s", table, input, options);
    memset(rows, 0, sizeof *rows);
    if (bytes < 0 || (size_t)bytes >= sizeof path) return fail(client, "the options are too long");
    if (post(client, path, "application/octet-stream", body, length, &reply, &reply_length)) return -1;
    rows->memory = reply;
    if (reply_length < ROWS_HEAD_BYTES || memcmp(reply, "SROW", 4) || number(reply + 4) != 0) {
        sanderling_free_rows(rows);
        return fail(client, "the answer has no rows of 32-bit floats");
    }
    rows->rows = number(reply + 8);
    rows->dim = number(reply + 12);
    memcpy(&rows->version, reply + 16, sizeof rows->version);
    rows->absent = number(reply + 24);
    if (reply_length != ROWS_HEAD_BYTES + 4 * (uint64_t)rows->absent + 4 * (uint64_t)rows->rows * rows->dim) {
        sanderling_free_rows(rows);
        return fail(client, "the answer has an unexpected length");
    }
    /* All parts are multiples of 4 bytes behind an address that malloc has aligned. */
    rows->absent_places = (const uint32_t *)(const void *)(reply + ROWS_HEAD_BYTES);
    rows->weights = (const float *)(const void *)(reply + ROWS_HEAD_BYTES + 4 * (size_t)rows->absent);
    return 0;
}

int sanderling_rows_of_keys(sanderling *client, const char *table, const uint64_t *keys, size_t count,
                            const char *options, sanderling_rows *rows) {
    return ask_rows(client, table, "keys", keys, count * sizeof *keys, options, rows);
}

int sanderling_rows_of_values(sanderling *client, const char *table, const char *const *values, size_t count,
                              const char *options, sanderling_rows *rows) {
    size_t length = 0, at = 0, value;
    char *body;
    int done;
    for (value = 0; value < count; value++) length += 4 + strlen(values[value]);
    body = malloc(length + 1);
    if (!body) return fail(client, "no memory");
    for (value = 0; value < count; value++) {
        uint32_t bytes = (uint32_t)strlen(values[value]);
        memcpy(body + at, &bytes, 4);
        memcpy(body + at + 4, values[value], bytes);
        at += 4 + bytes;
    }
    done = ask_rows(client, table, "values", body, length, options, rows);
    free(body);
    return done;
}

int sanderling_predict(sanderling *client, const char *rows_json, float *scores, size_t count) {
    size_t length = strlen(rows_json) + sizeof "{\"rows\":}", found = 0;
    char *body = malloc(length), *reply, *at;
    int failed;
    if (!body) return fail(client, "no memory");
    snprintf(body, length, "{\"rows\":%s}", rows_json);
    failed = post(client, "/predict", "application/json", body, length - 1, &reply, &length);
    free(body);
    if (failed) return -1;
    at = strstr(reply, "\"scores\":[");
    for (at = at ? at + strlen("\"scores\":[") : NULL; at && found < count;) {
        char *end;
        scores[found] = strtof(at, &end);
        if (end == at) break;
        found++;
        at = *end == ',' ? end + 1 : NULL;
    }
    free(reply);
    return (int)found;
}
