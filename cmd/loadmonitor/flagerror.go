package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// flagError names a flag whose value cannot be read as errors about its key in a file do.
func flagError(_ *cobra.Command, err error) error {
	if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		return fmt.Errorf("--%s is %q: %s", invalid.GetFlag().Name, invalid.GetValue(), wantOf(invalid.GetFlag(), invalid.Unwrap()))
	}
	return err
}

// wantOf says what value a flag takes, for one that it did not.
func wantOf(f *pflag.Flag, err error) string {
	var number *strconv.NumError
	outside := errors.As(err, &number) && errors.Is(number.Err, strconv.ErrRange)
	switch f.Value.Type() {
	case "bool":
		return "want true or false"
	case "duration":
		return strings.TrimPrefix(err.Error(), "time: ") + ": want a number with its unit, e.g. 250ms or 3s"
	case "uint16":
		return "want a number from 0 to 65535"
	case "int", "uint64":
		if outside {
			return "the number is too large"
		}
		return "want a whole number"
	case "float64":
		return "want a number"
	}
	return err.Error()
}
