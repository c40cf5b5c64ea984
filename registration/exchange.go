package registration

import (
	"bufio"
	"context"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"sync"
	"time"
)

// maxInformational bounds the answers before the answer, those with a status of 1xx.
const maxInformational = 5

var (
	// errNoAnswer goes with the reason why not a byte of an answer came.
	errNoAnswer   = errors.New("no answer")
	errLongHeader = errors.New("the header of the answer is too long")
	errNoFinal    = errors.New("too many answers before the answer")
)

// buffers are what a connection needs while a request is under way. They are shared by all, so that an idle connection has
// none.
type buffers struct {
	in io.LimitedReader // of the connection
	r  *bufio.Reader    // of in
	w  *bufio.Writer
}

var spareBuffers = sync.Pool{New: func() any {
	b := &buffers{}
	b.r, b.w = bufio.NewReaderSize(&b.in, 4<<10), bufio.NewWriterSize(nil, 1<<10)
	return b
}}

// exchange is a request and its answer on a connection of its own, in the goroutine that asks: what net/http's transport
// does with two more of them, which it keeps, with their buffers, as long as the connection.
type exchange struct {
	ctx  context.Context
	conn net.Conn
	keep func(net.Conn) // what becomes of the connection if it can be used again; nil: it cannot
	stop func() bool    // watching ctx
	*buffers
}

// over sends a request over a connection and reads the answer up to its body, which must be closed and lets the connection
// go. It ends with ctx, and so does reading the body. An error is errNoAnswer as well when the connection had closed.
func over(ctx context.Context, conn net.Conn, req *http.Request, keep func(net.Conn)) (*http.Response, error) {
	x := &exchange{ctx: ctx, conn: conn, keep: keep, buffers: spareBuffers.Get().(*buffers)}
	x.stop = context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	x.in = io.LimitedReader{R: conn, N: maxAnswerBytes}
	x.r.Reset(&x.in)
	x.w.Reset(conn)
	resp, err := x.header(req)
	if err != nil {
		x.end(false)
		return nil, x.why(err)
	}
	x.in.N = math.MaxInt64 // whoever reads the body has a bound
	resp.Body = &answerBody{Reader: resp.Body, x: x, again: !resp.Close && resp.StatusCode >= http.StatusOK, ended: resp.Body == http.NoBody}
	return resp, nil
}

func (x *exchange) header(req *http.Request) (*http.Response, error) {
	if err := req.Write(x.w); err != nil {
		return nil, errors.Join(errNoAnswer, err)
	}
	if err := x.w.Flush(); err != nil {
		return nil, errors.Join(errNoAnswer, err)
	}
	if _, err := x.r.Peek(1); err != nil {
		return nil, errors.Join(errNoAnswer, err)
	}
	for range 1 + maxInformational {
		resp, err := http.ReadResponse(x.r, req)
		switch {
		case err != nil && x.in.N <= 0:
			return nil, errLongHeader
		case err != nil:
			return nil, err
		case resp.StatusCode >= http.StatusOK || resp.StatusCode == http.StatusSwitchingProtocols:
			return resp, nil
		}
	}
	return nil, errNoFinal
}

// why returns what an error means: when ctx has ended, that is the reason.
func (x *exchange) why(err error) error {
	if err != nil && err != io.EOF && x.ctx.Err() != nil {
		return x.ctx.Err()
	}
	return err
}

// end lets the connection go. again says that it is at the end of an answer after which there may be another one.
func (x *exchange) end(again bool) {
	watched := x.stop() // else ctx has ended and the connection's deadline with it
	again = again && watched && x.keep != nil && x.r.Buffered() == 0
	x.in.R = nil
	x.w.Reset(nil)
	spareBuffers.Put(x.buffers)
	x.buffers = nil
	if again {
		x.keep(x.conn)
	} else {
		_ = x.conn.Close()
	}
}

// answerBody is that of an answer. One that is not read to its end costs the connection.
type answerBody struct {
	io.Reader
	x            *exchange
	again, ended bool
}

func (b *answerBody) Read(p []byte) (int, error) {
	if b.x.buffers == nil {
		return 0, net.ErrClosed
	}
	n, err := b.Reader.Read(p)
	b.ended = b.ended || err == io.EOF
	return n, b.x.why(err)
}

func (b *answerBody) Close() error {
	if b.x.buffers != nil {
		b.x.end(b.again && b.ended)
	}
	return nil
}
