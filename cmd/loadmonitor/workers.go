package main

import (
	"encoding/json"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/loadmonitor/loadmonitor/registration"
)

// workersOf reads the list of workers in a configuration file as a workers file of its own. Everything keeps its line, so
// that errors name the one in the configuration file.
func workersOf(file string, list *yaml.Node) ([]registration.Spec, error) {
	if list.Kind != yaml.SequenceNode {
		return nil, fmt.Errorf("%s:%d: %s: want a list of workers", file, list.Line, workersKey)
	}
	var b lineKeeper
	b.write(list)
	return registration.ParseWorkers(file, []byte(b.text.String()))
}

// lineKeeper writes a node in flow style, which allows line breaks anywhere, with each scalar on its line.
type lineKeeper struct {
	text strings.Builder
	line int // lines begun
}

func (b *lineKeeper) write(n *yaml.Node) {
	if b.line == 0 {
		b.line = 1
	}
	for ; b.line < n.Line; b.line++ {
		b.text.WriteByte('\n')
	}
	if n.Anchor != "" {
		b.text.WriteString("&" + n.Anchor + " ")
	}
	switch n.Kind {
	case yaml.SequenceNode:
		b.text.WriteByte('[')
		for _, item := range n.Content {
			b.write(item)
			b.text.WriteByte(',')
		}
		b.text.WriteByte(']')
	case yaml.MappingNode:
		b.text.WriteByte('{')
		for i := 0; i+1 < len(n.Content); i += 2 {
			b.write(n.Content[i])
			b.text.WriteString(" : ")
			b.write(n.Content[i+1])
			b.text.WriteByte(',')
		}
		b.text.WriteByte('}')
	case yaml.AliasNode:
		b.text.WriteString("*" + n.Value + " ")
	default:
		if n.ShortTag() == "!!null" {
			b.text.WriteString("null")
			return
		}
		quoted, _ := json.Marshal(n.Value) // a string in quotes is the same in YAML
		b.text.Write(quoted)
	}
}
