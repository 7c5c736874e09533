# Command lines of the shell scripts: --help prints what a script says of itself at its head, and nothing is done.
# To be sourced, before the script changes its folder.

usage() { awk 'NR > 1 { if (!/^#/) exit; sub(/^# ?/, ""); print }' "$0"; }

answer_help() {  # ARGUMENTS…
  local word
  for word; do
    if [ "$word" = --help ] || [ "$word" = -h ]; then usage; exit 0; fi
  done
}

# Anything but these flags, and so many other words, is an error.
read_usage() {  # LEAST MOST FLAGS ARGUMENTS…
  local least=$1 most=$2 flags=" $3 " words=0 word
  shift 3
  answer_help "$@"
  for word; do
    if [[ $flags == *" $word "* ]]; then continue; fi
    if [[ $word == -* ]]; then words=$((most + 1)); break; fi
    words=$((words + 1))
  done
  if [ $words -lt "$least" ] || [ $words -gt "$most" ]; then usage >&2; exit 2; fi
}
