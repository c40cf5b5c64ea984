package registration

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
)

// failed says why there is no answer. It uses words of its own: the errors of the network name ephemeral ports, which
// would make each attempt a different reason, and those of the HTTP reader quote the peer, which may quote our token.
func failed(err error) answer {
	var blocked *unadvertisedError
	var name *net.DNSError
	var timeout net.Error
	var certificate *tls.CertificateVerificationError
	var authority x509.UnknownAuthorityError
	var record tls.RecordHeaderError
	var alert tls.AlertError
	switch {
	case errors.As(err, &blocked):
		return answer{outcome: unadvertised, reason: blocked.Error()}
	case errors.As(err, &name) && name.IsNotFound:
		return answer{outcome: unreachable, away: true, reason: "the host name does not exist"}
	case errors.As(err, &name):
		return answer{outcome: unreachable, away: true, reason: "the host name cannot be looked up"}
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return answer{outcome: timedOut, reason: "the engine does not answer in time"}
	case errors.Is(err, syscall.ECONNREFUSED):
		return answer{outcome: unreachable, away: true, reason: "connection refused"}
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EADDRNOTAVAIL):
		return answer{outcome: unreachable, away: true, reason: "no route to the engine"}
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return answer{outcome: unreachable, away: true, reason: "too many open files here: raise the monitor's file limit"}
	case errors.As(err, &certificate), errors.As(err, &authority):
		return answer{outcome: unreachable, reason: "the engine's certificate is not trusted"}
	case errors.As(err, &record), errors.As(err, &alert):
		return answer{outcome: unreachable, reason: "TLS failed: check whether the engine speaks https"}
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return answer{outcome: unreachable, reason: "the connection closed without an answer"}
	}
	return answer{outcome: unreachable, reason: "no valid HTTP answer: check that the address is an engine's own"}
}
