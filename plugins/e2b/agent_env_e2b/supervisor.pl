# Runs one command in a sandbox and tells of it on stdout, in lines; or ends one. See supervisor.py for the protocol.
use strict;
use POSIX ();

my ($mode, $token, @rest) = @ARGV;
my $folder = "/tmp/.agent-env-$token";
my $input = "$folder.in";
my $tick = POSIX::sysconf(POSIX::_SC_CLK_TCK());
sub now { return (POSIX::times())[0] / $tick }

sub slurp {
    my ($path) = @_;
    local $/;
    open(my $file, '<', $path) or return '';
    my $text = <$file>;
    return defined $text ? $text : '';
}

# Every process that carries the token, or is of the session; not this one, and no dead one.
sub members {
    my ($session) = @_;
    my @found;
    for my $place (glob '/proc/[0-9]*') {
        my $pid = substr($place, 6);
        next if $pid == $$;
        my (undef, $stat) = slurp("$place/stat") =~ /(.*)\) (.*)/s or next;
        my ($state, undef, undef, $sid) = split ' ', $stat;
        next if $state eq 'Z' || $state eq 'X';
        my $mine = $session && $sid == $session;
        push @found, $pid if $mine || index("\0" . slurp("$place/environ"), "\0AGENT_ENV_EXEC=$token\0") >= 0;
    }
    return @found;
}

# Kills them until a look finds none; false where that doesn't come to an end.
sub sweep {
    my ($session) = @_;
    my $ends = now() + 10;
    while (my @found = members($session)) {
        kill 'KILL', @found;
        return 0 if now() > $ends;
        select undef, undef, undef, 0.01;
    }
    return 1;
}

if ($mode eq 'end') {
    my $early = mkdir $folder;    # then it hasn't begun, and won't: a command makes this folder first
    my $session = slurp("$folder/session");
    my $done = sweep($session);
    unlink $input, "$folder.sh", "$folder/session";
    rmdir $folder unless $early;
    exit($done ? 0 : 1);
}

my ($seconds, $limit, $cwd, $has_input) = splice(@rest, 0, 4);
mkdir $folder, 0700 or exit 125;

my %env = (PATH => '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin');
for my $pair (split /\0/, slurp('/etc/agent-env/env')) {
    my ($name, $value) = split /=/, $pair, 2;
    $env{$name} = $value unless $name =~ /^(PWD|OLDPWD|SHLVL|_|USER|LOGNAME|HOME)$/;
}
my ($user, $home) = (getpwuid($>))[0, 7];
@env{qw(HOME USER LOGNAME)} = ($home, $user, $user) if defined $user;
for my $kind (qw(SPEC CALL)) {
    for my $key (grep { /^AGENT_ENV_${kind}_\d+$/ } keys %ENV) {
        my ($name, $value) = split /=/, $ENV{$key}, 2;
        $env{$name} = $value;
    }
}
$env{AGENT_ENV_EXEC} = $token;
$cwd = $ENV{AGENT_ENV_WORKDIR} if $cwd eq '';
$cwd = slurp('/etc/agent-env/workdir') unless defined $cwd && $cwd ne '';
$cwd = '/' if $cwd eq '';

$| = 1;
pipe(my $out_read, my $out_write) && pipe(my $err_read, my $err_write) && pipe(my $news_read, my $news_write)
    or exit 125;
$SIG{CHLD} = sub { syswrite $news_write, '.' };
my $pid = fork;
defined $pid or exit 125;
if (!$pid) {
    $SIG{$_} = 'DEFAULT' for qw(CHLD PIPE);
    POSIX::setsid();
    %ENV = %env;
    open STDERR, '>&', $err_write or POSIX::_exit(126);
    open STDOUT, '>&', $out_write or POSIX::_exit(126);
    my $source = $has_input ? $input : '/dev/null';
    open STDIN, '<', $source or print(STDERR "$source: $!\n"), POSIX::_exit(126);
    unlink $input if $has_input;
    chdir $cwd or print(STDERR "$cwd: $!\n"), POSIX::_exit(126);
    { no warnings; exec { $rest[0] } @rest; }
    my $code = $! == POSIX::ENOENT() ? 127 : 126;
    print STDERR "$rest[0]: $!\n";
    POSIX::_exit($code);
}
close $out_write;
close $err_write;
if (open my $file, '>', "$folder/session") { print $file $pid; close $file }
$SIG{PIPE} = 'IGNORE';

sub say_line {
    my $text = "$_[0]\n";
    while (length $text) {
        my $sent = syswrite STDOUT, $text;
        return unless defined $sent || $!{EINTR};
        substr($text, 0, $sent || 0) = '';
    }
}

sub base64 {
    my $text = join '', map { substr $_, 1 } split /\n/, pack 'u', $_[0];
    $text =~ tr#` -_#AA-Za-z0-9+/#;
    my $more = (3 - length($_[0]) % 3) % 3;
    substr($text, -$more) = '=' x $more if $more;
    return $text;
}

my %from = (o => $out_read, e => $err_read);
my %kept = (o => 0, e => 0);
my %dropped = (o => 0, e => 0);

sub take {
    my ($kind) = @_;
    my $got = sysread $from{$kind}, my $data, 49152;
    return $got if !defined $got && $!{EINTR};
    if (!$got) { delete $from{$kind}; return 0 }
    my $room = $limit - $kept{$kind};
    my $part = $room >= $got ? $data : substr($data, 0, $room);
    if (length $part) { say_line($kind . base64($part)); $kept{$kind} += length $part }
    $dropped{$kind} += $got - length $part;
    return $got;
}

my $deadline = $seconds > 0 ? now() + $seconds : undef;
my ($status, $late, $left);
while (1) {
    my $watch = '';
    vec($watch, fileno $_, 1) = 1 for values %from, $news_read;
    my $wait = defined $status ? 0 : defined $deadline ? $deadline - now() : undef;
    $wait = 0 if defined $wait && $wait < 0;
    my $ready = select $watch, undef, undef, $wait;
    if ($ready > 0) {
        sysread $news_read, my $news, 4096 if vec($watch, fileno $news_read, 1);
        for my $kind (sort keys %from) {
            next unless vec($watch, fileno $from{$kind}, 1);
            my $got = take($kind);
            $left -= $got if defined $left && $got;
        }
    }
    # What it wrote before its end is in the pipes; what others go on writing is not waited for.
    last if defined $status && ($ready <= 0 || !%from || $left <= 0);
    if (!defined $status && waitpid($pid, POSIX::WNOHANG()) == $pid) { ($status, $left) = ($?, 4 << 20) }
    if (!defined $status && defined $deadline && now() >= $deadline) {
        ($late, $deadline) = (1, undef);
        if (!sweep($pid)) { say_line('f'); exit 1 }
    }
}
say_line("d$_$dropped{$_}") for grep { $dropped{$_} } keys %dropped;
unlink "$folder/session";
rmdir $folder;
say_line($late ? 't' : 'x' . ($status & 127 ? 128 + ($status & 127) : $status >> 8));
if (%from && !fork) {    # somebody still writes there, and shall not die of it
    close STDOUT;
    close STDERR;
    POSIX::setsid();
    while (%from) {
        my $watch = '';
        vec($watch, fileno $_, 1) = 1 for values %from;
        next if select($watch, undef, undef, undef) <= 0;
        for my $kind (keys %from) {
            next unless vec($watch, fileno $from{$kind}, 1);
            delete $from{$kind} unless sysread $from{$kind}, my $data, 65536;
        }
    }
}
