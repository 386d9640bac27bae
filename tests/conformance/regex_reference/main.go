// Answers patterns as Kubernetes' CEL does, with Go's regexp: one JSON request a line on stdin, one JSON answer a line
// on stdout. Used to record tests/conformance/regex_vectors.jsonl (see conformance.regex); no test needs it.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
)

type request struct {
	Pattern string `json:"pattern"`
	Text    string `json:"text"`
}

type answer struct {
	Error   string   `json:"error"`
	Matches bool     `json:"matches"`
	All     []string `json:"all"`
}

func ask(from request) answer {
	pattern, err := regexp.Compile(from.Pattern)
	if err != nil {
		return answer{Error: err.Error(), All: []string{}}
	}
	all := pattern.FindAllString(from.Text, -1)
	if all == nil {
		all = []string{}
	}
	return answer{Matches: pattern.MatchString(from.Text), All: all}
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(make([]byte, 1<<20), 1<<26)
	out := bufio.NewWriter(os.Stdout)
	answers := json.NewEncoder(out)
	answers.SetEscapeHTML(false)
	for lines.Scan() {
		var from request
		if err := json.Unmarshal(lines.Bytes(), &from); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		if err := answers.Encode(ask(from)); err != nil {
			os.Exit(1)
		}
	}
	if err := out.Flush(); err != nil {
		os.Exit(1)
	}
}
