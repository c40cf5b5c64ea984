package pub

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"
)

const (
	// DefaultMaxSockets is enough for one engine.
	DefaultMaxSockets = 128
	// MaxMaxSockets is how many libzmq can do in one context.
	MaxMaxSockets = 65535
	// MaxTopic bounds a topic, in bytes. With libzmq 4.3.4 subscriptions to most topics of 246 to 255 bytes do not arrive.
	MaxTopic = 128
)

// Why something is refused. They are wrapped with the offender and the remedy.
var (
	ErrInvalid        = errors.New("not valid")
	ErrTooManySockets = errors.New("too many sockets")
	// ErrStopped: Run has ended, and with it every socket.
	ErrStopped = errors.New("publisher has stopped")
	// ErrClosed: Close was called.
	ErrClosed         = errors.New("engine publishes no more")
	ErrAlreadyRunning = errors.New("Run was called before")
)

// Options configure a Publisher. The zero value is usable.
type Options struct {
	// MaxSockets is how many PUB sockets all engines may have together: one for each rank. 0 means DefaultMaxSockets.
	MaxSockets int
	// Logger gets one line per episode of trouble. nil discards.
	Logger *slog.Logger
}

func (o *Options) setDefaults() error {
	if o.MaxSockets == 0 {
		o.MaxSockets = DefaultMaxSockets
	}
	if o.MaxSockets < 0 || o.MaxSockets > MaxMaxSockets {
		return fmt.Errorf("pub: Options.MaxSockets is %d: want 1 to %d: %w", o.MaxSockets, MaxMaxSockets, ErrInvalid)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}

// Binding describes one engine that publishes.
type Binding struct {
	// Range says where. Host is *, [::] or an IP address of this machine, which an engine's configuration may not be (see
	// Ports). Base 0 means consecutive ports that are free, below those that the kernel gives to outgoing connections where
	// there are any.
	Range Range
	// Topic is the first frame of every message; it may be empty.
	Topic string
	// Form is how the payload is written.
	Form Form
	// Every is at how many decode steps a changed value is sent. 0 means DefaultEvery.
	Every int
	// IdleInterval is, for LoadSnapshot, the least time between two messages of an idle loop. 0: one at every turn, as
	// engines do that send thousands a second. The array forms repeat an unchanged value about once a second.
	IdleInterval time.Duration
}

func (b *Binding) setDefaults() error {
	if b.Every == 0 {
		b.Every = DefaultEvery
	}
	switch {
	case b.Range.Ranks < 1:
		return fmt.Errorf("pub: Binding.Range.Ranks is %d: want 1 or more: %w", b.Range.Ranks, ErrInvalid)
	case b.Range.Base < 0 || b.Range.last() > maxPort:
		return fmt.Errorf("pub: Binding.Range is %v: want 1 to %d, or base 0 for any: %w", b.Range, maxPort, ErrInvalid)
	case len(b.Topic) > MaxTopic:
		return fmt.Errorf("pub: Binding.Topic has %d bytes: want at most %d: %w", len(b.Topic), MaxTopic, ErrInvalid)
	case b.Form > LoadSnapshot:
		return fmt.Errorf("pub: Binding.Form is %d: want a form of this package: %w", b.Form, ErrInvalid)
	case b.Every < 0:
		return fmt.Errorf("pub: Binding.Every is %d: want 1 or more, or 0 for %d: %w", b.Every, DefaultEvery, ErrInvalid)
	case b.IdleInterval < 0:
		return fmt.Errorf("pub: Binding.IdleInterval is %v: want 0 or more: %w", b.IdleInterval, ErrInvalid)
	}
	if _, err := listenHost(b.Range.Host); err != nil {
		return err
	}
	if strings.Contains(b.Range.Host, ":") && b.Range.Host[0] != '[' {
		b.Range.Host = "[" + b.Range.Host + "]"
	}
	return nil
}

func (b *Binding) pace() pace {
	return pace{every: b.Every, allIdle: b.Form == LoadSnapshot, idleWait: b.IdleInterval}
}
