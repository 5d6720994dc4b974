#!/usr/bin/env perl
# A tiny worker for Perl, written from docs/protocol.md. docs/write-a-worker.md explains it step by step.
# It needs only core modules. Code sees ask(), display() and tool(); `our` variables and subs are the state.

# This sub comes first, so that the code sees none of the variables below.
sub evaluate { no strict; no warnings; return scalar eval "package main; $_[0]" }

package Tiny;
use strict;
use warnings;
use Encode ();
use Fcntl qw(F_SETFD FD_CLOEXEC);
use JSON::PP ();
use POSIX ();
use Socket qw(MSG_DONTWAIT MSG_NOSIGNAL);

use constant { BODY_MAX => 196_604, TEXT_MAX => 4_000, MESSAGE_MAX => 16 * 1024 * 1024 };

my $worker = $$;
my $json = JSON::PP->new->ascii->allow_nonref;
my ($unread, @frames) = ("");    # bytes of a frame that is not whole, and frames that nobody has taken
my %interrupts;                  # turns with an `interrupt`; it may come before the turn_start is whole
my $running;                     # the turn whose code runs
my $is_open = 0;                 # 1 while a signal may stop the code
my $was_stopped = 0;             # 1 once the code of this turn was stopped
my ($input, $at_eof) = ("", 0);  # what the code has not read yet
my $calls = 0;

open my $socket, "+<&=", delete $ENV{WINDLASS_FD} or die "WINDLASS_FD: $!";
fcntl $socket, F_SETFD, FD_CLOEXEC;    # no program that the code starts gets the socket

# Code that exits ends its turn. A process that the code has forked has no socket, and exits as usual.
BEGIN {
    *CORE::GLOBAL::exit = sub (;$) {
        my $status = shift // 0;
        die bless { status => $status }, "Tiny::Exit" if $$ == $worker;
        CORE::exit($status);
    };
    *CORE::GLOBAL::fork = sub () {
        my $pid = CORE::fork();
        if (defined $pid && !$pid) { close $socket; $SIG{INT} = $SIG{URG} = "DEFAULT" }
        return $pid;
    };
}

# Frames.

sub receive {    # waits for bytes (or looks, with 0 seconds) and splits them into frames
    my ($seconds) = @_;
    vec(my $readable = "", fileno $socket, 1) = 1;
    return 0 unless select($readable, undef, undef, $seconds) > 0;
    my $count = sysread $socket, $unread, 65_536, length $unread;
    return 0 if !defined $count;        # a signal came
    POSIX::_exit(0) if $count == 0;     # the keeper is gone
    while (length $unread >= 8) {
        my ($rest, $size) = unpack "NN", $unread;
        last if length $unread < 4 + $rest;
        my $frame = substr $unread, 0, 4 + $rest, "";
        my $header = $json->decode(substr $frame, 8, $size);
        if ($header->{kind} eq "interrupt") { $interrupts{ $header->{turn} } = 1 }
        else { push @frames, [$header, substr $frame, 8 + $size] }
    }
    return 1;
}

sub next_frame {    # the next frame; undef if the running turn was interrupted
    while (1) {
        return undef if defined $running && $interrupts{$running};
        return shift @frames if @frames;
        receive(undef);
    }
}

sub send_frame {    # writes a whole frame, and reads meanwhile: the keeper may be writing too
    my ($header, $body) = (shift, shift // "");
    my $text = $json->encode($header);
    my $frame = pack("NN", 4 + length($text) + length $body, length $text) . $text . $body;
    while (length $frame) {
        my $sent = send $socket, $frame, MSG_DONTWAIT | MSG_NOSIGNAL;
        if (defined $sent) { substr $frame, 0, $sent, ""; next }
        POSIX::_exit(0) unless $!{EAGAIN} || $!{EINTR};
        vec(my $both = "", fileno $socket, 1) = 1;
        select(my $readable = $both, my $writable = $both, undef, undef) > 0 or next;
        receive(0) if vec $readable, fileno $socket, 1;
    }
}

sub send_parts {    # a long body as several frames; the last one has no `more`
    my ($header, $body) = @_;
    while (length $body > BODY_MAX) {
        send_frame({ %$header, more => JSON::PP::true }, substr $body, 0, BODY_MAX, "");
    }
    send_frame($header, $body);
}

sub send_output {
    my ($stream, $text) = @_;
    my $bytes = Encode::encode("UTF-8", $text);
    while (length $bytes) {
        send_frame({ kind => "output", turn => $running + 0, stream => $stream },
            substr $bytes, 0, BODY_MAX, "");
    }
}

sub short {    # valid Unicode that fits into a header
    my $text = substr "$_[0]", 0, TEXT_MAX;
    $text =~ s/[^\x{0}-\x{d7ff}\x{e000}-\x{10ffff}]/\x{fffd}/g;
    return $text;
}

# Signals. The keeper writes the frame `interrupt`, then sends SIGINT, then SIGURG until the turn is over.

sub on_signal {
    return unless $is_open && !$was_stopped && $$ == $worker;
    $is_open = 0;    # another signal must not come between
    1 while receive(0);
    $is_open = 1;
    stop() if $interrupts{$running};
}

sub stop {    # raises the interrupt, once; later SIGURG must not cut the sleeps of code that caught it
    $was_stopped = 1;
    $SIG{URG} = "IGNORE";
    die bless {}, "Tiny::Interrupt";
}

sub closed {    # runs a part of the worker that no signal may cut, then stops the code if it must
    my ($part) = @_;
    $is_open = 0;
    my @result = $part->();
    $is_open = 1;
    on_signal();
    return wantarray ? @result : $result[0];
}

# What the code can call.

sub main::ask {
    my ($prompt) = @_;
    closed(sub { request($prompt // "") }) if $input eq "" && !$at_eof;
    stop() if $interrupts{$running} && !$was_stopped;
    return undef if $input eq "";
    $input =~ s/\A(.*?(?:\n|\z))//s;
    return $1;
}

sub request {
    my ($prompt) = @_;
    send_frame({ kind => "stdin_wait", turn => $running + 0, prompt => short($prompt) });
    while (my $frame = next_frame()) {
        my ($header, $body) = @$frame;
        finish() if $header->{kind} eq "shutdown";
        next unless $header->{kind} eq "turn_input" && $header->{turn} == $running;
        $input .= $body;
        $at_eof = 1 if $header->{eof};
        last unless $header->{more};
    }
}

sub main::display {
    my ($mime, $bytes) = @_;
    closed(sub { send_parts({ kind => "display", turn => $running + 0, mime => $mime }, $bytes) });
    return;
}

sub main::tool {
    my ($name, %arguments) = @_;
    my $body = $json->encode(\%arguments);
    die "the arguments have more than 16 MiB\n" if length $body > MESSAGE_MAX;
    my ($ok, $result) = closed(sub { call($name, $body) });
    die "interrupted\n" unless defined $ok;
    die(($json->decode($result)->{message} // "the tool failed") . "\n") unless $ok;
    return $json->decode($result);
}

sub call {
    my ($name, $body) = @_;
    my ($call, $result) = (++$calls, "");
    send_parts({ kind => "tool_call", turn => $running + 0, call => $call, name => $name }, $body);
    while (my $frame = next_frame()) {
        my ($header, $part) = @$frame;
        finish() if $header->{kind} eq "shutdown";
        next unless $header->{kind} eq "tool_result" && $header->{call} == $call;
        return (0, $part) unless $header->{ok};
        $result .= $part;
        return (1, $result) unless $header->{more};
    }
    return;
}

# Turns.

sub run_turn {
    my ($code) = @_;
    my ($value, $error, $name) = (undef, undef, "Error");
    ($input, $at_eof, $was_stopped) = ("", 0, 0);
    $SIG{INT} = $SIG{URG} = \&on_signal;    # the code may have changed them
    eval {    # a signal may still come when the code has ended
        $is_open = 1;
        on_signal();
        $value = main::evaluate(qq(\n#line 1 "turn $running"\n$code));
        $error = $@;
        $is_open = 0;
        1;
    } or $error = $@;
    $is_open = 0;
    POSIX::_exit(0) if $$ != $worker;       # a forked process that has run to the end of the code
    1 while receive(0);                     # an interrupt that no signal has told, as during `system`
    if (ref $error eq "Tiny::Interrupt" || ($interrupts{$running} && !$was_stopped)) {
        return { outcome => "interrupted" };
    }
    if (ref $error eq "Tiny::Exit") {
        return { outcome => "ok" } if $error->{status} == 0;
        ($name, $error) = ("Exit", "exit status $error->{status}\n");
    }
    if (ref $error || $error ne "") {
        send_output("traceback", "$error");
        return { outcome => "error", error => { name => $name, message => short($error) } };
    }
    send_output("result", "$value\n") if defined $value && $code !~ /[;}]\s*\z/;
    return { outcome => "ok" };
}

sub finish {
    send_frame({ kind => "session_end", reason => "shutdown" });
    POSIX::_exit(0);
}

$| = 1;
binmode STDOUT, ":utf8";
binmode STDERR, ":utf8";
$SIG{INT} = $SIG{URG} = \&on_signal;
my $code = "";
send_frame({
    kind => "worker_ready", protocol => 1, worker => sprintf("perl %vd", $^V),
    capabilities => [qw(stdin interrupt display tools)],
});
while (my $frame = next_frame()) {
    my ($header, $body) = @$frame;
    finish() if $header->{kind} eq "shutdown";
    next if $header->{kind} ne "turn_start";    # late, or new to this worker
    $code .= $body;
    next if $header->{more};
    my $text = Encode::decode("UTF-8", $code);
    ($running, $code) = ($header->{turn}, "");
    my $end = $interrupts{$running} ? { outcome => "interrupted" } : run_turn($text);
    send_frame({ kind => "idle", turn => $running + 0, %$end });
    delete @interrupts{ grep { $_ <= $running } keys %interrupts };
    $running = undef;
}
