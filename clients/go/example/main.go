// Prints the rows of values, their sum, and the score of a row:
//
//	go run ./example http://127.0.0.1:8500 user '{"user":"u17","genres":"a"}' u17 u18
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"sanderling"
)

func main() {
	if err := run(os.Args[1], os.Args[2], os.Args[3], os.Args[4:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(url, table, row string, values []string) error {
	ctx, client := context.Background(), sanderling.Client{URL: url, Token: os.Getenv("SANDERLING_TOKEN")}
	rows, err := client.RowsOfValues(ctx, table, values, sanderling.Options{})
	if err != nil {
		return err
	}
	sum, err := client.RowsOfValues(ctx, table, values, sanderling.Options{Pooling: "sum"})
	if err != nil {
		return err
	}
	scores, err := client.Predict(ctx, []json.RawMessage{json.RawMessage(row)}, sanderling.Options{})
	if err != nil {
		return err
	}
	fmt.Println("version", rows.Version)
	fmt.Println("absent", strings.Trim(fmt.Sprint(rows.Absent), "[]"))
	for at := 0; at < rows.Len(); at++ {
		fmt.Println("row", strings.Trim(fmt.Sprint(rows.Row(at)), "[]"))
	}
	fmt.Println("sum", strings.Trim(fmt.Sprint(sum.Row(0)), "[]"))
	fmt.Println("score", scores[0])
	return nil
}
