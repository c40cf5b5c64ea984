package client

import "errors"

// Why a link is down, in [Link].Err; found with errors.Is.
var (
	// ErrNotConnected: Run has not heard the monitor yet.
	ErrNotConnected = errors.New("client: not connected to the monitor yet")
	// ErrSilent: the monitor said nothing for longer than the link timeout. The wrapping text says for how long, and how
	// the newest try to reach it failed.
	ErrSilent = errors.New("client: the monitor is silent")
	// ErrContract: the monitor sent frames that break the watch contract; the wrapping text says which rule. The client
	// asks for the full picture.
	ErrContract = errors.New("client: the monitor broke the watch contract")
	// ErrStopped: Run has returned, so nothing keeps the view up to date.
	ErrStopped = errors.New("client: stopped")
)
