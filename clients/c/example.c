/* Prints the rows of values, their sum, and the score of a row:
 * ./example 127.0.0.1 8500 user '{"user":"u17","genres":"a"}' u17 u18 */
#include "sanderling.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print(const char *name, const float *weights, uint32_t dim) {
    printf("%s", name);
    for (uint32_t at = 0; at < dim; at++) printf(" %.9g", (double)weights[at]);
    printf("\n");
}

int main(int count, char **words) {
    sanderling_rows rows, sum;
    float score;
    char json[4096];
    if (count < 6 || strlen(words[4]) > sizeof json - 3) return 2;
    sanderling *client = sanderling_new(words[1], words[2], getenv("SANDERLING_TOKEN"), 10);
    const char *const *values = (const char *const *)(words + 5);
    size_t of = (size_t)count - 5;
    snprintf(json, sizeof json, "[%s]", words[4]);
    if (!client) return 2;
    if (sanderling_rows_of_values(client, words[3], values, of, "", &rows) ||
        sanderling_rows_of_values(client, words[3], values, of, "pooling=sum", &sum) ||
        sanderling_predict(client, json, &score, 1) != 1) {
        fprintf(stderr, "%s\n", sanderling_error(client));
        return 1;
    }
    printf("version %llu\nabsent", (unsigned long long)rows.version);
    for (uint32_t at = 0; at < rows.absent; at++) printf(" %u", rows.absent_places[at]);
    printf("\n");
    for (uint32_t at = 0; at < rows.rows; at++) print("row", rows.weights + (size_t)at * rows.dim, rows.dim);
    print("sum", sum.weights, sum.dim);
    printf("score %.9g\n", (double)score);
    sanderling_free_rows(&rows);
    sanderling_free_rows(&sum);
    sanderling_free(client);
    return 0;
}
